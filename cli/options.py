"""Options that dataclasses declare, and those that several commands share."""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING
from functools import reduce, wraps
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

import click
from click.core import ParameterSource

from ctx_embed.errors import InputError, quoted
from ctx_embed.index.following import FolderOptions
from ctx_embed.options import BACKENDS, DTYPE_NAMES, declared, types_of
from ctx_embed.reading.rows import Fields

Command = TypeVar("Command", bound=Callable[..., Any])

OUTPUT = click.Path(path_type=Path)
SEED = click.IntRange(0, 2**32 - 1)


def options_of(
    *kinds: Any,
    only: Collection[str] | None = None,
    but: Collection[str] = (),
    cases: Mapping[str, Any] | None = None,
    hidden: bool = False,
    section: str = "Options",
) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of dataclasses, or of instances with other defaults, to a command.

    A field may state ``flag``, ``metavar``, ``default_is`` (the default in words), ``command=False`` (no option) and
    its ``section`` of the help, if not the given one. All fields (with ``only``, these) become options, except those in
    ``but``. With ``cases``, instances by name, the help lists the default of each case; the options then default to
    None, and the command chooses the case.
    """

    def add(command: Command) -> Command:
        for given in reversed(kinds):
            options = given if isinstance(given, type) else type(given)
            for known in reversed([*declared(options)]):
                kind, shown = types_of(options)[known.name], known.metadata["shown"]
                if known.name in but or not shown.get("command", True) or (only and known.name not in only):
                    continue
                default = known.default if isinstance(given, type) else getattr(given, known.name)
                flag = shown.get("flag", f"--{known.name.replace('_', '-')}")
                settings: dict[str, Any] = {"help": known.metadata["meaning"], "hidden": hidden}
                if kind is bool and default is False:
                    settings["is_flag"] = True
                elif kind is bool:
                    flag = f"{flag}/--no-{flag[2:]}"
                elif get_origin(kind) is Literal:
                    settings["type"] = click.Choice(get_args(kind))
                elif kind in (int, float):
                    limits = known.metadata["limits"]
                    least = limits.get("above", limits.get("at least"))
                    most = limits.get("at most", limits.get("below"))
                    is_open = {"min_open": "above" in limits, "max_open": "below" in limits}
                    settings["type"] = (click.IntRange if kind is int else click.FloatRange)(least, most, **is_open)
                    settings["metavar"] = shown.get("metavar")
                else:
                    settings["metavar"] = shown.get("metavar", "FILE")
                    several = get_origin(kind) is Sequence or shown.get("repeated")
                    settings["help"] += " May be repeated." if shown.get("repeated") else ""
                    settings |= {"multiple": True} if several else {"type": Path if kind is Path else str}
                values = {case: getattr(each, known.name) for case, each in (cases or {}).items()}
                if "default_is" in shown or values:
                    words = [f"{case} {value}".strip() for case, value in values.items()]
                    if len(set(values.values())) <= 1:
                        words = [str(value) for value in values.values()][:1]
                    settings["help"] += f"  [default: {shown.get('default_is') or '; '.join(words)}]"
                    default = None
                settings |= {"required": True} if default is MISSING else {"default": default}
                command = click.option(flag, known.name, **settings)(command)
                cast(Any, command).__click_params__[-1].section = shown.get("section", section)
        return command

    return add


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds several options, in this order."""
    return lambda command: reduce(lambda added, option: option(added), reversed(options), command)


data_option = click.option(
    "--data",
    envvar="CTX_EMBED_DATA",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of data sets; also read from CTX_EMBED_DATA.",
)
field_option = click.option(
    "--field", "text_field", multiple=True, metavar="NAME", help="Field of the text; may be repeated.  [default: text]"
)
label_option = click.option("--label-field", metavar="NAME", help="The field that holds the label.  [default: label]")
# The columns of a table of labelled texts.
field_options = together(field_option, label_option)
encoding_option = click.option(
    "--encoding", metavar="NAME", help="The encoding of the text, e.g. cp1252.  [default: UTF-8, or detected]"
)
backend_option = click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    help="Run the model with NumPy or torch.  [default: numpy; torch for models that NumPy does not run]",
)


def require_new(path: Path, folder: bool = False) -> None:
    """Refuse an output that exists and is not empty, unless --overwrite is given."""
    is_there, size = (os.path.isdir, os.listdir) if folder else (os.path.isfile, os.path.getsize)
    if not click.get_current_context().meta.get(OVERWRITE) and is_there(path) and size(path):
        raise InputError(f"{path}: already exists; replace it with --overwrite, or choose another name")


def new_output(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Return the path of an output that may be written."""
    if path is not None:
        require_new(path, parameter.metavar == FOLDER)
    return path


def overwrite_option(what: str) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--overwrite``, which :func:`require_new` obeys."""

    def noted(context: click.Context, parameter: click.Parameter, overwrite: bool) -> None:
        context.meta[OVERWRITE] = overwrite

    meaning = f"Replace {what} if it exists."
    return click.option("--overwrite", is_flag=True, is_eager=True, expose_value=False, callback=noted, help=meaning)


def output_option(meaning: str, *, metavar: str = "OUT", required: bool = False) -> Callable[[Command], Command]:
    """Return a decorator that adds ``-o``, for a file or the folder DIR, and ``--overwrite``."""
    output = click.option(
        "-o", "--output", required=required, metavar=metavar, type=OUTPUT, callback=new_output, help=meaning
    )
    return together(output, overwrite_option(metavar))


def text_options(command: Command) -> Command:
    """Add ``--field``, ``--id-field`` and ``--title-field``; the command gets these fields as ``text_field``."""

    @wraps(command)
    def with_fields(*, text_field: Any, id_field: str | None, title_field: str | None, **options: Any) -> Any:
        return command(text_field=Fields(text_field, id_field, title_field), **options)

    return cast(Command, field_option(options_of(FolderOptions, only=("id_field", "title_field"))(with_fields)))


def dtype_option(default: str) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--dtype``: how vectors are stored; ``default`` ends its help text."""
    return click.option(
        "--dtype",
        type=click.Choice(DTYPE_NAMES),
        help=f"Store vectors as float32, float16 (half the size) or int8 (a quarter).  {default}",
    )


# The key under which a click context stores the recipe of a command.
OF_RECIPE = "ctx_embed.recipe"
# The key under which a click context stores whether existing outputs are replaced.
OVERWRITE = "ctx_embed.overwrite"
# The name of a folder in help texts.
FOLDER = "DIR"


def named_values(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...], fields: bool = False
) -> dict[str, Any]:
    """Return the values of NAME=VALUE by name: JSON values, or texts.

    Numbers may be several, separated by commas. But values of metadata ``fields`` are numbers only where they would be
    written in the same way, like the cells of a table: 1.10 and 1e3 are texts.
    """
    from ctx_embed.reading.tables import number_of

    def as_written(text: str) -> Any:
        number = number_of(text)
        return text if number is None else number

    hooks: Any = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), as_written) if fields else {}
    named: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"must be NAME=VALUE, got {quoted(text)}.", context, parameter)
        is_list = not fields and "," in value and not value.startswith("[")
        try:
            # JSON would lose the spaces around a text.
            is_text = fields and value != value.strip()
            named[name] = value if is_text else json.loads(f"[{value}]" if is_list else value, **hooks)
        except (ValueError, RecursionError):
            named[name] = value
    return named


# Hidden: docs/encoders.md has them.
encoder_options = together(
    click.option("--encoder", default="contextualizer", hidden=True),
    click.option("--option", "encoder_options", multiple=True, callback=named_values, hidden=True),
)


def chosen_options(encoder: str, encoder_options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a system: from the command line, else from a recipe for the same system."""
    from ctx_embed.systems import require_options
    from ctx_embed.training.options import ContextualizerOptions

    context = click.get_current_context()
    recipe = context.meta.get(OF_RECIPE, {})
    of_recipe = recipe.get("encoder_options", {}) if recipe.get("encoder", "contextualizer") == encoder else {}
    options = {**of_recipe, **encoder_options}
    require_options(encoder, options)
    if encoder != "contextualizer":
        given = [
            f"--{name.replace('_', '-')}"
            for name in vars(ContextualizerOptions())
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ]
        if given:
            raise click.UsageError(f"{', '.join(given)}: only for the contextualizer; use --option for {encoder}.")
    return options


def corpus_files(names: tuple[str, ...], data: Path | None) -> list[Path]:
    """Return the named files, or those that match a pattern under the data folder, in order."""
    files: list[Path] = []
    for name in names:
        found = [Path(name)] if os.path.isfile(name) else []
        if not found and data is not None:
            found = [data / match for match in sorted(glob(name, root_dir=data, recursive=True))]
        if not found:
            if data is not None:
                raise InputError(f"{name}: no such file, and nothing under {data} matches it")
            needed = "; patterns need --data or CTX_EMBED_DATA" if has_magic(name) else ""
            raise InputError(f"{name}: no such file{needed}")
        files.extend(found)
    return files
