"""`ctx-embed index info`, `verify`, `backup`, `reembed`, `compact` and `merge`: inspect and maintain indexes."""

import json
from contextlib import closing

import click

from ctx_embed.cli.index import opened
from ctx_embed.cli.main import command, counted, printable
from ctx_embed.cli.options import backend_option, dtype_option
from ctx_embed.errors import InputError


def _say_unfinished(path: str) -> None:
    """Say on standard error whether an addition to an index was interrupted, and how to go on with it."""
    from ctx_embed.index.build import last_run
    from ctx_embed.index.database import Database

    with closing(Database(path)) as store:
        run = last_run(store, finished=False)
    if run is not None:
        added = f"an addition was interrupted after {counted(run.documents, 'document')}"
        click.echo(f"{path}: {added}; repeat its command: ctx-embed index build ... {path} --resume", err=True)


@command()
@click.argument("path", metavar="INDEX")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def info(path: str, as_json: bool) -> None:
    """Print the number of documents of INDEX, its model, kind and size.

    Example: ctx-embed index info reviews.index
    """
    with opened(path) as index:
        facts = index.describe()
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False, indent=2))
    else:
        from ctx_embed.index.faiss_file import searched

        facts["faiss"] = searched(facts["faiss"])
        for name, value in facts.items():
            click.echo(f"{name.replace('_', ' '):<18} {'unknown' if value is None else value}")
    if facts["vectors_of_deleted"] > facts["vectors"] / 2:
        click.echo(
            f"Most vectors belong to deleted documents: ctx-embed index compact {path} frees their space.", err=True
        )
    _say_unfinished(path)


@command()
@click.argument("path", metavar="INDEX")
@click.option("--no-model", is_flag=True, help="Skip the check that embeds some passages again.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object: problems, unchecked.")
def verify(path: str, no_model: bool, as_json: bool) -> None:
    """Find damage: compare checksums, counts, words, and vectors with documents. Exit code 1 if there is any.

    Example: ctx-embed index verify reviews.index
    """
    with opened(path) as index:
        found = index.verify(embed=not no_model)
        documents = counted(index.count(), "document")
    if as_json:
        click.echo(json.dumps({"problems": found, "unchecked": found.unchecked}, ensure_ascii=False, indent=2))
    else:
        for line in found.unchecked:
            click.echo(printable(f"not checked: {line}"), err=True)
        for line in found or [f"{path}: whole, {documents}"]:
            click.echo(printable(line))
    if not found:
        return _say_unfinished(path)
    raise InputError(
        f"{path}: damaged ({counted(len(found), 'problem')}); restore it from a copy or build the index again"
    )


@command()
@click.argument("path", metavar="INDEX")
@click.argument("target", metavar="NEW")
def backup(path: str, target: str) -> None:
    """Copy INDEX to the folder NEW as it is at one moment, while others read and write.

    Example: ctx-embed index backup reviews.index backups/monday.index
    """
    with opened(path) as index:
        index.backup(target)
    with opened(target) as index:
        click.echo(f"{target}: {counted(index.count(), 'document')}")


@command()
@click.argument("path", metavar="INDEX")
@click.option("--model", metavar="NAME|PATH", help="A model folder, a name, or 'default'.  [default: default]")
@backend_option
def reembed(path: str, model: str | None, backend: str | None) -> None:
    """Embed the stored texts of INDEX again with another model, such as a new default model.

    Documents, ids, metadata and passages stay. Until everything is ready, INDEX can be searched and changed as before.
    Repeat an interrupted command to continue.

    Example: ctx-embed index reembed reviews.index --model ./my-model
    """
    with opened(path) as index:
        documents = index.reembed(model, backend=backend, progress=True)
        name = index.describe()["model"]
    if documents:
        click.echo(f"{path}: {counted(documents, 'document')} embedded again with the model {name}")
    else:
        click.echo(f"{path}: nothing to do, it has the vectors of this model")


@command()
@click.argument("path", metavar="INDEX")
@dtype_option("[default: as they are]")
def compact(path: str, dtype: str | None) -> None:
    """Remove what deleted documents left behind, and rebuild FAISS's file. Searches are not interrupted.

    With --dtype, all vectors are stored anew in that data type. If this is killed, the index is intact; repeat it.

    \b
    Example: ctx-embed index compact reviews.index
    Example: ctx-embed index compact reviews.index --dtype int8
    """
    with opened(path) as index:
        removed = index.compact(dtype)
        stored = f", stored as {index.describe()['dtype']}" if dtype else ""
        click.echo(f"{path}: {counted(removed, 'vector')} removed, {counted(index.count(), 'document')}{stored}")


@command()
@click.argument("sources", metavar="INDEX...", nargs=-1, required=True)
@click.option("-o", "--output", "path", required=True, metavar="NEW", help="The folder of the new index.")
@click.option("--replace", is_flag=True, help="A document replaces one with its id in an earlier index.")
def merge(sources: tuple[str, ...], path: str, replace: bool) -> None:
    """Make one index of several with the same model, without embedding again.

    Documents that were added without ids are numbered anew. An id that was given to documents of two indexes is an
    error, unless --replace keeps the later document.

    Example: ctx-embed index merge monday.index tuesday.index -o week.index
    """
    from ctx_embed.index.build import merge_indexes

    count = merge_indexes(sources, path, replace=replace, progress=True)
    click.echo(f"{counted(count, 'document')} in {path}")
