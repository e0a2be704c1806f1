"""`ctx-embed grep`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ctx_embed.cli.main import command, counted, errors_in_one_line, one_line, printable
from ctx_embed.cli.options import encoding_option, options_of
from ctx_embed.cli.terminal import styled
from ctx_embed.index.following import FolderOptions
from ctx_embed.index.query import OF_HITS, Options

if TYPE_CHECKING:
    from ctx_embed.grep import Found

FILES = ("include", "exclude", "follow_links", "text_field", "title_field")
# Exit statuses, the same as grep's.
NO_HIT, FAILED = 1, 2
# After a search that took more seconds than this, advise building an index.
SLOW_SECONDS = 10.0
# Previews in a terminal: the seconds between two, the text that removes one, and maximum characters of its answer.
PREVIEW_EVERY, CLEAR, PREVIEW_CHARACTERS = 1.0, "\r\x1b[K", 60
# Maximum characters of a line to show in a terminal.
SHOWN_CHARACTERS = 500


@command("grep")
@click.argument("question")
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@options_of(Options, only=OF_HITS, section="Hits")
@options_of(FolderOptions, only=FILES, section="Files")
@encoding_option
@click.option("-A", "--after-context", "after", type=click.IntRange(0), help="Lines to show after the line of a hit.")
@click.option("-B", "--before-context", "before", type=click.IntRange(0), help="Lines to show before it.")
@click.option("-C", "--context", "context", default=0, type=click.IntRange(0), help="Lines to show on both sides.")
@click.option("-l", "--files-with-matches", "files", is_flag=True, help="Print only the names of files, best first.")
@click.option(
    *("-r", "--recursive", "-n", "--line-number", "-i", "--ignore-case", "-H", "--with-filename", "-I", "as_ever"),
    is_flag=True,
    expose_value=False,
    help="Accepted as in grep, but always on.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each hit as a line of JSON, with the whole passage.")
@click.option("--model", metavar="NAME|PATH", help="A model folder or a name.  [default: default]")
def grep(question: str, paths: tuple[str, ...], **options: Any) -> None:
    """Search files for the passages that answer QUESTION, by meaning and by words, without an index.

    PATH is a file, a folder or - for standard input; without PATH, standard input if it is a pipe or a file, else the
    current folder. Files are read, and folders are walked, as by 'index build': hidden files, binary files and those
    that .gitignore names are left out. Hits are printed as PATH:LINE:TEXT with the sentence or line that answers best,
    best hit first; scores are in --json. "Words in quotation marks" must occur, as a phrase, unless --mode is dense.

    The best hits are known only once everything has been read; until then, a terminal shows the best one so far.
    Text files of any size are read in bounded memory.

    Passages with a relevance below 0.8 are hidden, except with --mode words; --min-relevance 0 shows the nearest ones
    even if they hardly answer. Nothing is stored: if you search the same files often, build an index. The exit status
    is 0 with a hit, 1 without one, and 2 after an error, even if other files have hits.

    \b
    Example: ctx-embed grep "how are passwords stored?" src/ docs/ --include '*.md' --include '*.py'
    Example: ctx-embed grep "disk is full" /var/log/app.log -k 3 -C 2
    """
    started = time.monotonic()
    with errors_in_one_line(lambda: "", FAILED):
        from ctx_embed.grep import Search, Sources
        from ctx_embed.index.words import asked

        usual = os.curdir
        # Without PATH, search standard input if something is written to it.
        with suppress(OSError, ValueError):
            kind = os.fstat(sys.stdin.fileno()).st_mode
            if stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or stat.S_ISSOCK(kind):
                usual = "-"
        of_files = {name: options[name] for name in (*FILES, "encoding")}
        sources = Sources(list(paths) or [usual], **of_files)
        before, after = (options["context"] if options[name] is None else options[name] for name in ("before", "after"))
        of_hits = {name: options[name] for name in (*OF_HITS, "files", "model")}
        search = Search(question, before=before, after=after, **of_hits)
        in_terminal, shown = sys.stderr.isatty() and sys.stdout.isatty(), started
        try:
            for _ in search.read(sources.texts()):
                if in_terminal and time.monotonic() > shown + PREVIEW_EVERY:
                    shown, line = time.monotonic(), f"{counted(search.lines, 'line')} searched"
                    for hit in search.hits()[:1]:
                        answer = one_line(hit.text[slice(*(hit.highlight or (0, None)))], PREVIEW_CHARACTERS)
                        line += f", best: {_name(hit)}:{hit.nearest_line or ''}:{answer}"
                    width = shutil.get_terminal_size().columns - 1
                    preview = click.style(one_line(line, width), dim=True)
                    click.echo(CLEAR + preview, styled(sys.stderr), nl=False)
        finally:
            if shown > started:
                click.echo(CLEAR, styled(sys.stderr), nl=False)
        hits = search.hits()
        for number, hit in enumerate(hits):
            if options["as_json"]:
                click.echo(json.dumps(hit.as_dict(), ensure_ascii=False))
            elif options["files"]:
                click.secho(_name(hit), styled(sys.stdout), fg="magenta")
            else:
                if number and (before or after):
                    click.secho("--", styled(sys.stdout), fg="cyan")
                for line in _lines(hit, before, after):
                    click.echo(line, styled(sys.stdout))
        sources.report.print()
        if not hits and search.hidden:
            click.echo("no hits: no passage answers this well enough; --min-relevance 0 shows the nearest", err=True)
        elif not hits and options["mode"] != "dense" and (phrases := " and ".join(asked(question).phrases)):
            click.echo(f"no hits: no passage has {printable(phrases)}; without the marks, words may be apart", err=True)
        if (seconds := time.monotonic() - started) > SLOW_SECONDS and paths:
            files = " ".join(map(shlex.quote, paths))
            build = f"ctx-embed index build {files} NAME.index"
            click.echo(f"This took {seconds:.0f} s. An index answers in milliseconds: {build}", err=True)
        click.get_current_context().exit(FAILED if sources.report.failed else 0 if hits else NO_HIT)


def _lines(hit: Found, before: int, after: int) -> Iterator[str]:
    """Yield the lines of a hit's highlight and those around it, each after its path and number, as grep prints them."""
    text = hit.before + hit.text + hit.after
    start, stop = (len(hit.before) + place for place in hit.highlight or (0, len(hit.text)))
    first, last = text.count("\n", 0, start), text.count("\n", 0, stop)
    begin = 0
    for number, line in enumerate(text.split("\n")):
        if first - before <= number <= last + after:
            place = None if hit.nearest_line is None else hit.nearest_line + number - first
            found = (max(start - begin, 0), max(stop - begin, 0))
            page = f", page {hit.page}" if place is None and hit.page is not None else ""
            shown = [click.style(_name(hit) + page, fg="magenta")]
            if place is not None:
                shown.append(click.style(str(place), fg="green"))
            text_shown = line
            if sys.stdout.isatty():
                parts = []
                for part in (line[: found[0]], line[slice(*found)], line[found[1] :]):
                    plain = printable(part[: SHOWN_CHARACTERS + 1].expandtabs(4), " ")
                    parts.append(plain if len(plain) <= SHOWN_CHARACTERS else f"{plain[: SHOWN_CHARACTERS - 1]}…")
                parts[1] = click.style(parts[1], fg="red", bold=True) if parts[1] else ""
                text_shown = "".join(parts)
            mark = ":" if first <= number <= last else "-"
            yield click.style(mark, fg="cyan").join([*shown, text_shown])
        begin += len(line) + 1


def _name(hit: Found) -> str:
    """Return the path of a hit without bytes that are not UTF-8 and, in a terminal, without control characters."""
    name = str(hit.id).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return printable(name) if sys.stdout.isatty() else name
