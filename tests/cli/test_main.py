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


def test_help_names_every_command_and_version_the_kernel():
    result = run("--help")
    assert result.exit_code == 0
    assert "Example: ctx-embed index build" in result.stdout
    words = " ".join(result.stdout.split())
    assert words.endswith(" ".join(f"{name} {line}" for name, line in sorted(COMMANDS.items())))
    assert run("-h").stdout == result.stdout
    version = run("-V").stdout
    assert version == run("--version").stdout
    assert version == f"ctx-embed, version {ctx_embed.__version__}\nkernel: {kernel_name()}\n"
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


def commands(group=main, names=()):
    """Every command and group with its names."""
    yield names, group
    for name in group.list_commands(None) if isinstance(group, click.Group) else ():
        yield from commands(group.get_command(None, name), (*names, name))


HELP = {" ".join(names): run(*names, "--help").stdout for names, _ in commands()}


def test_help_reads_well():
    for name, text in HELP.items():
        assert "Example: ctx-embed" in text, name
        assert not re.search(r"RANGE|--out\b|  \w+  .*\.\.\.\n", text), name


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


def test_an_unknown_command():
    for arguments, said in (
        (["trian"], "unknown command 'trian': did you mean 'train'? known are "),
        (["xyz"], "unknown command 'xyz': known are "),
        (["index", "quary", "a"], "unknown command 'quary': did you mean 'query'? known are "),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"Error: {said}" in result.stderr


def test_a_users_mistake_is_one_line_that_does_not_control_the_terminal(command):
    def mistaken():
        raise InputError("strange\nname \x1b[2J\x07\u202e: no such file")

    command(mistaken)
    result = run("train")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "Error: strange name ?[2J??: no such file\n")


def test_a_missing_package_is_one_line_and_a_bug_keeps_its_traceback(command):
    def lacking():
        raise ModuleNotFoundError(name="torch")

    command(lacking)
    said = f"Error: this needs torch, which the light installation leaves out: {installation()}\n"
    assert run("train").stderr == said
    command(lambda: 1 / 0)
    assert isinstance(run("train").exception, ZeroDivisionError)


def test_an_interruption(command):
    def interrupted():
        raise KeyboardInterrupt

    command(interrupted)
    for name, said in (
        ("train", "repeat the command to continue after the last complete epoch"),
        ("distill", "repeat the command to continue where it stopped"),
        ("predict", "nothing was changed"),
    ):
        result = run(name)
        assert (result.exit_code, result.stdout, result.stderr) == (130, "", f"\nInterrupted; {said}.\n")
