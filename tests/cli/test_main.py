from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import ctx_embed
from ctx_embed.cli import main as cli
from ctx_embed.cli.main import COMMANDS, main
from ctx_embed.errors import InputError, installation
from ctx_embed.kernel import kernel_name
from tests.helpers.cli import Command

ROOT = Path(__file__).parents[2]
run = Command("").run


@pytest.fixture
def command(monkeypatch):
    """Put a function in the place of a command."""

    def put(function):
        def get_command(self, ctx, cmd_name):
            return click.Command(cmd_name, callback=function)

        monkeypatch.setattr(cli.MainGroup, "get_command", get_command)

    return put


def test_help_names_every_command():
    result = run("--help")
    assert result.exit_code == 0
    assert "Example: ctx-embed index build" in result.stdout
    words = " ".join(result.stdout.split())
    assert words.endswith(" ".join(f"{name} {line}" for name, line in sorted(COMMANDS.items())))
    assert run("-h").stdout == result.stdout


def test_version_and_no_command():
    version, kernel = run("-V").stdout.splitlines()
    assert version == f"ctx-embed, version {ctx_embed.__version__}"
    assert kernel == f"kernel: {kernel_name()}"
    assert run("-V").stdout == run("--version").stdout
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


def commands(group=main, names=()):
    """Every command and group with its names."""
    yield names, group
    for name in group.list_commands(None) if isinstance(group, click.Group) else ():
        yield from commands(group.get_command(None, name), (*names, name))


HELP = {" ".join(names): run(*names, "--help").stdout for names, _ in commands()}


@pytest.mark.parametrize("name", HELP)
def test_help_reads_well(name):
    assert "Example: ctx-embed" in HELP[name]
    assert not re.search(r"RANGE|--out\b|  \w+  .*\.\.\.\n", HELP[name])


def test_a_number_beyond_any_is_one_line():
    result = run("demo", "-k", "9" * 40)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: Invalid value for '-k'")


def test_one_thing_has_one_option_name():
    """Of two options that mean one thing, people guess the wrong one."""
    known = {option: name for name, each in commands() for param in each.params for option in param.opts}
    assert not known.keys() & {"--out", "--size", "--text-field", "--column", "--quiet", "--verbose", "--format"}
    for name, each in commands():
        options = {option for param in each.params for option in param.opts}
        assert "-o" not in options or "--output" in options, name
        assert "--jsonl" not in options or "--json" in options, name


@pytest.mark.parametrize("name", ["train", "distill"])
def test_help_leaves_options_of_the_architecture_to_their_page(name):
    (each,) = (each for known, each in commands() if known == (name,))
    hidden = {param.opts[-1] for param in each.params if getattr(param, "hidden", False)}
    assert {"--encoder", "--option", "--steps", "--rank", "--positions", "--scale", "--initial-context"} <= hidden
    assert not hidden & set(HELP[name].split())
    page = (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8")
    assert all(f"`{option} " in page for option in hidden)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("trian", "did you mean 'train'? "),
        ("xyz", ""),
        ("index quary a b", "did you mean 'query'? "),
    ],
)
def test_an_unknown_command(arguments, hint):
    result = run(*arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    name = arguments.removeprefix("index ").split()[0]
    assert f"Error: unknown command {name!r}: {hint}known are " in result.stderr


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("strange\nname: no such file", "strange name: no such file"),
        ("\x1b[2J\x07name\u202e: no such file", "?[2J?name?: no such file"),
    ],
)
def test_a_users_mistake_is_one_line_that_does_not_control_the_terminal(command, message, shown):
    def mistaken():
        raise InputError(message)

    command(mistaken)
    result = run("train")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {shown}\n")


def test_a_missing_package_is_one_line_and_a_bug_keeps_its_traceback(command):
    def lacking():
        raise ModuleNotFoundError(name="torch")

    command(lacking)
    said = f"Error: this needs torch, which the light installation leaves out: {installation()}\n"
    assert run("train").stderr == said
    command(lambda: 1 / 0)
    assert isinstance(run("train").exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train", "repeat the command to continue after the last complete epoch"),
        ("distill", "repeat the command to continue where it stopped"),
        ("encode", "repeat the command; with --to it continues where it stopped"),
        ("predict", "nothing was changed"),
    ],
)
def test_an_interruption(command, name, said):
    def interrupted():
        raise KeyboardInterrupt

    command(interrupted)
    result = run(name)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", f"\nInterrupted; {said}.\n")
