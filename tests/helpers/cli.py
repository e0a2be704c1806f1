"""Commands of ctx-embed, called within the test's process or in a pseudo-terminal."""

import json
import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from ctx_embed.cli.main import main


def file(name: str, *lines: str) -> str:
    """Write a file of lines and return its name."""
    Path(name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return name


def record() -> dict:
    """Return what a training has stored in the folder of its model."""
    return json.loads(Path("model/training.json").read_text(encoding="utf-8"))


def in_a_terminal(*arguments: str) -> tuple[int, str]:
    """Return the status of a command in a pseudo-terminal, and what it shows there."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    with subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        # A terminal whose other end is closed is an error.
        with suppress(OSError):
            while part := os.read(ours, 1 << 16):
                shown += part
        status = process.wait(120)
    os.close(ours)
    return status, shown.decode()


# Other commands, which may be named with their options: in backticks, or to the end of a line.
OTHER_COMMAND = re.compile(r"`[^`]*`|ctx-embed .*|No such option.*")


def command_of(words: list[str]) -> click.Command:
    """Return the command that words begin with."""
    command: click.Command = main
    for word in words:
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word) or command
    return command


@dataclass(frozen=True)
class Command:
    """One command by its name; options of its methods are those of ``CliRunner.invoke``.

    ``only_error``: a failing run prints its error and nothing before it.
    """

    name: str
    only_error: bool = True

    def run(self, *arguments: object, **options) -> Result:
        """Return the result, whatever it is; options that it speaks of are its own."""
        words = [*self.name.split(), *map(str, arguments)]
        result = CliRunner().invoke(main, words, **options)
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", OTHER_COMMAND.sub("", result.stderr)))
        known = {name for option in command_of(words).params for name in (*option.opts, *option.secondary_opts)}
        assert named <= known | {"--help"}, result.stderr
        return result

    def succeeds(self, *arguments: object, **options) -> str:
        """Return what a run that must succeed prints on standard output."""
        result = self.run(*arguments, **options)
        assert result.exit_code == 0, result.output
        return result.stdout

    def fails(self, *arguments: object, code: int = 1, **options) -> str:
        """Return the error of a run that must fail, print nothing else and leave the present folder as it is."""
        before = sorted(os.listdir())
        result = self.run(*arguments, **options)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert sorted(os.listdir()) == before
        *others, line = result.stderr.splitlines()
        assert line.startswith("Error: ")
        assert not others or code == 2 or not self.only_error
        return line.removeprefix("Error: ")
