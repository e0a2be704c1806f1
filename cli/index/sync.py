"""`ctx-embed index sync`: keep an index in step with a folder."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from ctx_embed.cli.index import opened
from ctx_embed.cli.main import command, counted, printable
from ctx_embed.cli.options import backend_option, options_of
from ctx_embed.errors import InputError, missing_extra
from ctx_embed.index.following import FolderOptions
from ctx_embed.texts import well_formed

if TYPE_CHECKING:
    from ctx_embed.index.records import Synced


def summary(synced: Synced, path: str, would: str = "") -> str:
    """Return a line that says what was read and what was not; ``would`` is put before the verbs."""
    counts = (("added", synced.added), ("changed", synced.changed), ("removed", synced.removed))
    changes = [(count, name) for name, count in counts if count]
    if changes:
        (first, name), *others = changes
        more = [*others, *([(synced.unchanged, "unchanged")] if synced.unchanged else [])]
        said = f"{path}: {counted(first, 'file')} {would}{name}" + "".join(f", {count} {name}" for count, name in more)
    else:
        said = f"{path}: nothing changed in {counted(synced.unchanged, 'file')}"
    if synced.documents:
        said += f" ({counted(synced.documents, 'document')}, {counted(synced.passages, 'passage')})"
    return f"{said}; {synced.left_out}" if synced.left_out else said


def show(synced: Synced, path: str, would: str = "") -> None:
    """Print the summary and, on standard error, remarks on folders and globs."""
    for remark in synced.remarks:
        click.echo(printable(f"Warning: {remark}"), err=True)
    click.echo(summary(synced, path, would))
    for change, files in synced.files.items() if would else ():
        click.echo(printable(f"{change}: {', '.join(files)}{', ...' * (len(files) < getattr(synced, change))}"))


@command()
@click.argument("folder", metavar="FOLDER")
@click.argument("path", metavar="INDEX")
@options_of(FolderOptions)
@backend_option
@click.option("--watch", is_flag=True, help="Go on: update the index whenever a file changes, until Ctrl-C.")
@click.option("--allow-empty", is_flag=True, help="Go on if the folder has lost all its files, or most of many.")
@click.option("--dry-run", is_flag=True, help="Say what the run would do: read the files, change nothing.")
@click.option("--checksum", is_flag=True, help="Hash every file, even one whose size, times and inode are as before.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object on one line: added, changed, removed, ...")
def sync(
    folder: str, path: str, backend: str | None, watch: bool, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Bring INDEX in step with FOLDER: read new and changed files, remove the documents of files that are gone.

    Files whose size, times and inode are as before are not read. Documents from elsewhere stay. Options are those of
    the last run unless given. An interrupted run is continued by the next one.

    \b
    Example: ctx-embed index sync notes/ notes.index
    Example: ctx-embed index sync notes/ notes.index --watch
    """
    if watch and dry_run:
        raise click.UsageError("--watch and --dry-run cannot be combined")
    if watch:
        try:
            from watchfiles import watch as changes_in
        except ModuleNotFoundError:
            raise missing_extra("--watch", "documents") from None
    with opened(path, backend=backend) as index:

        def once() -> None:
            synced = index.sync(folder, dry_run=dry_run, progress=not watch, **options)
            if as_json:
                click.echo(well_formed(json.dumps(vars(synced), ensure_ascii=False)))
            else:
                show(synced, path, "would be " if dry_run else "")

        once()
        if not watch:
            return
        options["checksum"] = False
        own = (f"{os.path.realpath(index.path)}{os.sep}", f"{os.path.realpath(index.path)}.partial")
        click.echo(f"Watching {folder}; Ctrl-C ends.", err=True)
        for changes in changes_in(folder, watch_filter=None, raise_interrupt=False):
            # An index may be inside its folder.
            if all(os.path.realpath(changed).startswith(own) for _, changed in changes):
                continue
            try:
                once()
            except InputError as error:
                # Another process may be writing, or the folder be missing; the next change retries.
                click.echo(printable(f"Error: {error}"), err=True)
