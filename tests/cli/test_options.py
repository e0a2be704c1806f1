"""Each option of a command reaches the function that it calls, as the argument of its name, and has its default."""

import inspect
import json
from pathlib import Path
from pkgutil import resolve_name

import click
import pytest

from ctx_embed import SearchIndex, TextClassifier
from ctx_embed.errors import InputError
from tests.helpers.cli import Command, command_of, file

INDEX = "index.search_index:SearchIndex"
# What a command calls, the last of which ends it; its arguments; and options that change only what it prints or writes.
CALLS = {
    "dedupe": ("deduplication:dedupe", "a.txt -o new.txt --meaning 0.5 --overwrite", ""),
    "distill": (
        "training.distillation.job:distill",
        "a.txt --teacher permissive -o new",
        "corpus data recipe start second_teacher",
    ),
    "encode": ("bulk_encoding:encode_dataset", "a.txt --to new", "output batch_size"),
    "grep": ("grep:Sources grep:Search", "x a.txt", "as_ever"),
    "train": ("training.supervised.job:train", "a.tsv -o new", "frozen tokenizer vocabulary_size"),
    "index build": ("index.build:build_index", "a.txt new.index", "from_parquet"),
    "index compact": (f"{INDEX}.compact", "an.index", ""),
    "index count": (f"{INDEX}.count", "an.index", ""),
    "index duplicates": (f"{INDEX}.duplicates", "an.index", ""),
    "index facets": (f"{INDEX}.facets", "an.index n", ""),
    "index get": (f"{INDEX}.documents", "an.index", ""),
    "index merge": ("index.build:merge_indexes", "an.index -o new.index", ""),
    "index query": (f"{INDEX}.open {INDEX}.search", "an.index x", "source highlight"),
    "index reembed": (f"{INDEX}.reembed", "an.index", ""),
    "index similar": (f"{INDEX}.open {INDEX}.search", "an.index 0", ""),
    "index sync": (f"{INDEX}.open {INDEX}.sync", "notes an.index", "watch"),
    "index topics": (f"{INDEX}.topics", "an.index", "output"),
    "index verify": (f"{INDEX}.verify", "an.index", ""),
    "mcp": (f"{INDEX}.open", "an.index", ""),
    "predict": ("classify.predictor:Predictor.load cli.predict:open_rows", "model a.txt", "label_field explain output"),
    "serve": ("serving.running:run", "--no-keys", "api_key_file cors root_path"),
    "systems": ("systems:listing", "", ""),
    "vocab": ("training.vocabulary:learn_vocabulary", "a.txt -o new.json", "output text_field encoding"),
}
OF_OUTPUT = {"as_json", "as_jsonl", "as_csv", "quiet", "verbose", "overwrite"}


def given(option: click.Option) -> tuple[list[str], object]:
    """Return an option with a value that is not its default, and this value."""
    if option.is_flag:
        return ([option.secondary_opts[0]], False) if option.default is True else ([option.opts[-1]], True)
    kind, value = option.type, "n=1"
    if isinstance(kind, click.Choice):
        value = next(choice for choice in kind.choices if choice != option.default)
    elif isinstance(kind, click.IntRange):
        value = str(min((kind.min or 0) + 6, kind.max or 100))
    elif isinstance(kind, click.FloatRange):
        value = str((kind.min or 0) + 0.375)
    return [option.opts[-1], value], value


def arguments_of(monkeypatch, targets: list[str], name: str, more: list[str], words: list[str]) -> dict[str, object]:
    """Return the arguments that a command passes to functions, by their names."""
    found: dict[str, object] = {}

    def recorder(function, is_last):
        def record(*arguments: object, **named: object) -> object:
            bound = inspect.signature(function).bind(*arguments, **named)
            bound.arguments.pop("self", None)
            for key, value in bound.arguments.items():
                default = bound.signature.parameters[key].default
                if not more and key not in ("mode", "progress", "meaning") and isinstance(default, int | float | str):
                    assert value == default, key
                known = value if key in ("options", "settings") and isinstance(value, dict) else {key: value}
                found.update(vars(value) if hasattr(value, "__dataclass_fields__") else known)
            if is_last:
                raise InputError("recorded")
            return function(*arguments, **named)

        return record

    with monkeypatch.context() as patch:
        for target in targets:
            function = resolve_name(f"ctx_embed.{target}")
            patch.setattr(f"ctx_embed.{target.replace(':', '.')}", recorder(function, target == targets[-1]))
        result = Command(name, only_error=False).run(*more, *words)
    assert found, (more, result.stderr)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_each_option_reaches_the_function_that_a_command_calls(default_model, monkeypatch, name):
    for text in ("a.txt", "n=1"):
        file(text, "a cat", "a dog")
    file("a.tsv", "x\ta cat", "y\ta dog")
    Path("notes").mkdir()
    with SearchIndex.create("an.index") as index:
        index.add(["a cat", "a dog"], metadata=[{"n": 1}, {"n": 2}])
    TextClassifier().fit(["a cat", "a dog"] * 4, ["x", "y"] * 4).save("model")
    targets, words, left_out = (part.split() for part in CALLS[name])
    before = arguments_of(monkeypatch, targets, name, [], words)
    for option in command_of(name.split()).params:
        is_known = option.name in {*OF_OUTPUT, *left_out} or {*option.opts} & {*words}
        if is_known or not isinstance(option, click.Option) or option.hidden:
            continue
        more, value = given(option)
        found = arguments_of(monkeypatch, targets, name, more, words)
        assert found != before, more
        if option.name in found:
            assert str(value) in json.dumps(found[option.name], default=str) or found[option.name] == value, more
