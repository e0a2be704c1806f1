"""Run the code blocks of a Markdown page as a reader would, in order and in one folder.

A ``python`` block runs in the namespace of its page; a ``text`` block right below it is what it prints. In a
``console`` block, lines that begin with ``$`` are commands and the lines below each are its output; a ``bash`` block is
commands alone. ``{code-cell}`` blocks are those of a notebook: Python, in which ``!`` runs a command. In an output,
``...`` stands for any text. A block below a comment
``<!-- not run: REASON -->`` is left out, a page that begins with one as a whole.

``make pages`` runs all pages and writes what they print into them; ``python -m tests.docs.pages PAGE...`` runs some.
"""

import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ctx_embed.cli.main import main

ROOT = Path(__file__).parents[2]
# Not what tutorials have written beside themselves.
GLOBS = ("docs/*.md", "docs/lab/*.md", "docs/tutorials/*.md", "docs/reference/*.md")
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "papers/README.md")]
PAGES += [page for glob in GLOBS for page in sorted(ROOT.glob(glob))]
SKIPPED = re.compile(r"<!-- not run: (\S.*) -->\s*")
RUN = ("python", "console", "bash", "{code-cell}")
SHOWN = ("text", "json", "toml", "html", "bibtex", "{eval-rst}", "{include}", "{toctree}")
# What only a shell understands; a command without it runs in this process, which has torch loaded.
OF_SHELLS = re.compile(r"[|<>&;`]|\$[({\w]|\*")
# A command, which may go on below a backslash, and the lines that it prints.
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Step(NamedTuple):
    """A piece of code with what a page says that it prints; ``start`` to ``end`` are the lines of that output."""

    kind: str
    code: str
    line: int
    output: str | None = None
    start: int = 0
    end: int = 0


def tokens(page: Path) -> list[Token]:
    text = page.read_text(encoding="utf-8")
    if text.startswith("---\n"):  # front matter, replaced by as many blank lines
        head = text.index("\n---\n", 3) + 5
        text = "\n" * text.count("\n", 0, head) + text[head:]
    return MarkdownIt("commonmark").enable("table").parse(text)


def steps(page: Path) -> Iterator[Step]:
    """Yield what runs, in order.

    Raises:
        ValueError: a block is of no known language, or is indented code, which would never run.
    """
    found = tokens(page)
    if found and SKIPPED.fullmatch(found[0].content):
        return
    for before, token, after in zip([None, *found], found, [*found[1:], None], strict=False):
        if token.type == "code_block":
            raise ValueError(f"{page}:{token.map[0] + 1}: indented code; fence it and name its language")
        if token.type != "fence":
            continue
        language, line = token.info.partition(" ")[0], token.map[0] + 2
        if language not in RUN + SHOWN:
            raise ValueError(f"{page}:{line - 1}: a block of language {language!r}, one of {RUN + SHOWN} is needed")
        if language in SHOWN or (before is not None and SKIPPED.fullmatch(before.content or "")):
            continue
        if language == "console":
            if not token.content.startswith("$ "):
                raise ValueError(f"line {line}: a console block begins with a command, $ ...")
            for found in COMMAND.finditer(token.content):
                command = re.sub(r"\s*\\\n\s*", " ", found[1])
                places = (found.start(), found.start(2), found.end())
                begin, below, end = (line + token.content.count("\n", 0, at) for at in places)
                yield Step("console", command, begin, found[2].removesuffix("\n"), below - 1, end - 1)
        elif language == "python" and after is not None and after.type == "fence" and after.info == "text":
            yield Step("python", token.content, line, after.content, after.map[0] + 1, after.map[1] - 1)
        else:
            yield Step(language, token.content, line)


def run(page: Path, folder: Path) -> Iterator[tuple[Step, str]]:
    """Run a page in a folder; yield each step with what it printed."""
    module = types.ModuleType("__main__")
    before, place = sys.modules["__main__"], Path.cwd()
    try:
        sys.modules["__main__"] = module  # where pickle looks for what a page defines
        os.chdir(folder)
        for step in steps(page):
            try:
                printed = _run(step, module.__dict__)
            except Exception as error:
                raise AssertionError(f"{page}:{step.line}: {type(error).__name__}: {error}\n{step.code}") from error
            yield step, printed
    finally:
        sys.modules["__main__"] = before
        os.chdir(place)


def _run(step: Step, names: dict[str, Any]) -> str:
    if step.kind == "console":
        return command(step.code)
    if step.kind == "bash":
        script = step.code.replace("\\\n", " ")
        return "".join(command(line) for line in script.splitlines() if line and not line.startswith("#"))
    code = step.code
    if step.kind == "{code-cell}":
        if written := re.match(r"%%writefile (\S+)\n", code):
            return str(Path(written[1]).write_text(code[written.end() :], encoding="utf-8"))
        # The first lines may be options of the cell, such as `:tags: [remove-stderr]`.
        code = re.sub(r"\A(?::[\w-]+:.*\n)+", "", code)
        code = re.sub(r"^! *(.*)", lambda found: f"print(_command({found[1]!r}))", code, flags=re.MULTILINE)
        names["_command"] = command
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        tree = ast.parse(code)
        last = tree.body.pop() if step.kind == "{code-cell}" and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<page>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<page>", "eval"), names)
            show = getattr(value, "_repr_html_", getattr(value, "_repr_markdown_", value.__repr__))
            print("" if value is None else show())
    return printed.getvalue()


def command(line: str) -> str:
    """Return what a command prints on standard output; progress and warnings go to standard error.

    Raises:
        RuntimeError: its exit code is not 0.
    """
    if line.startswith("ctx-embed ") and not OF_SHELLS.search(re.sub(r"'[^']*'|\"[^\"$`]*\"", "", line)):
        result = CliRunner(catch_exceptions=False).invoke(main, shlex.split(line)[1:])
        code, output, errors = result.exit_code, result.stdout, result.stderr
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the command of this environment
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env={**os.environ, "PATH": path})
        code, output, errors = done.returncode, done.stdout, done.stderr
    if code:
        raise RuntimeError(f"exit code {code}: {line}\n{output}{errors}")
    return output


def agree(shown: str, printed: str) -> bool:
    """Return whether a page shows what was printed: ``...`` is any text, and spaces count as one."""
    exact = (re.escape(" ".join(part.split())) for part in re.split(r"\.\.\.|…", f" {shown} "))
    return re.fullmatch(r"[\s\S]*?".join(exact).strip(), " ".join(printed.split())) is not None


def prepare(folder: Path, page: Path) -> Path:
    """Copy the sample files to where they are in a clone; return where a page runs, a notebook in its own folder."""
    shutil.copytree(ROOT / "docs" / "samples", folder / "docs" / "samples")
    place = folder / "docs" / "tutorials" if page.parent.name == "tutorials" else folder
    place.mkdir(exist_ok=True)
    return place


def refresh(page: Path) -> None:
    """Write what the steps of a page print into it, where it shows anything else."""
    with tempfile.TemporaryDirectory() as folder:
        ran = list(run(page.resolve(), prepare(Path(folder), page.resolve())))
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    for step, printed in reversed(ran):
        if step.output is not None and not agree(step.output, printed):
            text = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
            lines[step.start : step.end] = [text]
            print(f"{page}:{step.line}: refreshed")
    page.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    # A reader has the data of the examples alone.
    os.environ.pop("CTX_EMBED_DATA", None)
    for page in map(Path, sys.argv[1:]) if sys.argv[1:] else PAGES:
        refresh(page)
