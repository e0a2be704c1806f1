"""Tests of the boundary, most in real processes: full disks, missing memory, closed streams and Ctrl-C."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import click
import numpy as np
import openpyxl
import pytest
import torch

import ctx_embed
from ctx_embed.cli.main import COMMANDS, MEANT, RESUME, errors_in_one_line, main
from ctx_embed.errors import InputError, installation
from ctx_embed.kernel import kernel_name
from tests.conftest import SENTENCES
from tests.helpers.cli import Command, command_of, file

run = Command("").run
COMMAND = [sys.executable, "-m", "ctx_embed"]
# Ctrl-C is answered within a second; a busy machine gets another one.
SECONDS = 2
AGAIN = "Interrupted; repeat the command; with --to it continues where it stopped."


@pytest.fixture
def texts(here):
    file("t.txt", *(f"{number} {text}" for number in range(20) for text in SENTENCES))
    return here


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of the shell in which CTX stands for the command."""
    line = line.replace("CTX", f"{sys.executable} -m ctx_embed")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)


def test_a_command_by_another_name_leads_to_it():
    for given, meant in (MEANT | {"build": "index build", "run": "eval run"}).items():
        for group in ([], ["index"]) if given in MEANT else ([],):
            said = run(*group, given, "notes.index", "x").stderr
            assert said.endswith(f"Error: unknown command '{given}': did you mean '{meant}'?\n")
        assert meant in HELP


def test_a_command_says_less_or_more_on_request(texts):
    def said(line: str) -> str:
        return run(*line.split()).stderr

    assert " documents/s, after " in said("index build t.txt one.index -v")
    assert re.search(r"index info took \d+\.\d\d s\n$", said("index info one.index -v"))
    assert said("index build t.txt two.index") == said("encode t.txt -o x.npy --quiet") == ""
    more = said("encode none.txt -o y.npy --verbose")
    assert more.startswith("Traceback (most recent call last)")
    assert more.endswith(said("encode none.txt -o y.npy -q"))
    assert "--quiet and --verbose cannot be combined" in said("encode t.txt -o y.npy -q -v")


def test_an_error_names_only_options_of_its_command(here, tiny_model_path):
    """Each run of ``Command`` checks this; here are messages that several commands share."""
    Path("beir/qrels").mkdir(parents=True)
    file("beir/qrels/test.tsv", "1\t1\t1")
    file("beir/queries.jsonl", '{"_id": "1", "text": "a cat"}')
    file("beir/corpus.jsonl", '{"id": "1", "text": "a cat"}')
    said = run("eval", "run", "--encoder", tiny_model_path, "--task", "beir").stderr
    assert "corpus.jsonl, line 1: no field '_id' (fields: 'id', 'text')\n" in said
    said = run("grep", "--field", "a", "--title-field", "a", "cat", "beir/corpus.jsonl").stderr
    assert said == "Error: the names of fields must differ, got 'a', 'a'\n"
    shutil.copytree(tiny_model_path, "gone")
    Path("docs").mkdir()
    file("docs/a.txt", "a cat")
    for index in ("one.index", "two.index"):
        assert run("index", "build", "docs", index, "--model", "gone").exit_code == 0
    shutil.rmtree("gone")
    file("docs/b.txt", "a dog")
    for command in ("sync docs one.index", "verify one.index", "merge one.index two.index -o three.index"):
        result = run("index", *command.split())
        assert f"{here / 'one.index'}: built with the model" in result.output + result.stderr, result.output


@pytest.mark.parametrize("empty", [np.empty, torch.empty])
def test_missing_memory_is_one_line(empty):
    said = pytest.raises(click.ClickException, match="there is not enough memory")
    with said, errors_in_one_line(lambda: ""):
        empty(10**15)
    for kind in (RuntimeError, ImportError):
        with pytest.raises(kind, match="a bug"), errors_in_one_line(lambda: ""):
            raise kind("a bug")
    # As it is in an address space of 530 MB.
    with said, errors_in_one_line(lambda: ""):
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")


def test_a_warning_is_one_line_without_code(texts):
    file("notes.txt", "Rain fell all night.", "日本語")
    built = shell("CTX index build notes.txt notes.index").stderr
    assert re.fullmatch(r"Warning: 1 of 2 texts have too few .* \('日本語'\): they are embedded as zeros, .*\n", built)
    warning, reason = shell("CTX index query notes.index 日本語 --mode dense").stderr.splitlines()
    assert re.match(r"Warning: the text '日本語' has too few words .*: it is embedded as zeros, ", warning)
    assert reason == "no hits: nothing is like the query"
    # The model names a script that it cannot read, so nothing else is said about unknown words.
    file("notes.txt", "кошка", "собака")
    assert shell("CTX encode notes.txt -o x.npy").stderr.count("Warning") == 1


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_a_full_disk_is_one_line_and_leaves_nothing(texts, suffix):
    # In blocks of 1024 bytes; the array has 200 kB.
    result = shell(f"ulimit -f 50; CTX encode t.txt -o x.{suffix}")
    assert (result.returncode, result.stderr) == (1, f"Error: cannot write x.{suffix}: File too large\n")
    assert os.listdir(texts) == ["t.txt"]


@pytest.mark.parametrize("command", ["encode t.txt -o -", "dedupe t.txt -o -", "--help"])
def test_an_output_that_cannot_be_written_is_one_line(texts, command):
    full = shell(f"CTX {command} > /dev/full")
    assert (full.returncode, full.stderr) == (1, "Error: No space left on device\n")
    closed = shell(f"CTX {command} >&-")
    assert (closed.returncode, closed.stderr) == (1, "Error: standard output is closed\n")
    # A reader that goes away is no error.
    assert shell(f"CTX {command} | true").stderr == ""


def test_a_full_folder_of_temporary_files_is_named(texts):
    openpyxl.Workbook().save("t.xlsx")
    file("t.csv", "id,text", *["1,a cat"] * 500)
    said = f"cannot write temporary files in {texts} (set TMPDIR to another folder): File too large"
    for line, wanted in (
        ("CTX dedupe t.txt -o x.txt", f"Error: {said}"),
        ("cat t.txt | CTX dedupe - -o x.txt", f"Error: {said}"),
        ("cat t.csv | CTX encode - --field text -o x.npy", f"Error: {said}"),
        ("CTX grep cat t.xlsx", f"could not read t.xlsx ({said})"),
    ):
        assert shell(f"export TMPDIR={texts}; ulimit -f 1; {line}").stderr == f"{wanted}\n", line


def test_a_store_given_as_an_index_keeps_its_password(texts):
    for name, *arguments in (
        ("serve", "postgresql://u:sekret@localhost/db"),
        ("index query", "qdrant:http://a:sekret@b", "x"),
        ("index build", "t.txt", "postgresql://u:sekret@localhost/db"),
    ):
        assert "sekret" not in Command(name).fails(*arguments)


def test_one_warning_about_texts_of_unknown_words(texts):
    """They are embedded in batches, and by other processes."""
    file("t.txt", *(f"text {n}\n{chr(0xAC00 + n)}" for n in range(6000)))
    few = "too few words that the model knows"
    for command, warning in (
        ("index build t.txt x", f"6,000 texts have {few} ('가', '각', '갂', ...): they"),
        ("encode t.txt --to y", f"6000 of 12000 texts have {few} ('t.txt:2', 't.txt:4', 't.txt:6', ...): they"),
        ("dedupe t.txt --meaning 0.99 -o x.txt", "the model knows too few words of 6,000 texts ("),
    ):
        *before, last = shell(f"CTX {command}").stderr.splitlines()
        assert last.startswith(f"Warning: {warning}")
        assert not any("too few words" in line for line in before)


def interrupted(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Send Ctrl-C; return the status and what the process says, unless it takes too long."""
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    said = process.stderr.read().decode()
    status = process.wait(30)
    assert time.monotonic() - start < SECONDS
    return status, said.splitlines()[-1]


def test_an_interrupted_encode_answers_at_once_and_leaves_nothing(texts):
    file("long.txt", *SENTENCES * 200_000)
    with subprocess.Popen([*COMMAND, "encode", "long.txt", "-o", "x.npy"], stderr=subprocess.PIPE) as process:
        time.sleep(3)
        assert interrupted(process) == (130, AGAIN)
    assert sorted(os.listdir(texts)) == ["long.txt", "t.txt"]


WAITING = """
import time
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
import click
from ctx_embed.cli import main as cli

def waits():
    with ThreadPoolExecutor(1) as pool:
        for _ in range(9):
            pool.submit(time.sleep, 5)
        print("ready", flush=True)

cli.MainGroup.get_command = lambda *_: click.Command("demo", callback=waits)
cli.run()
"""


@pytest.mark.parametrize(
    ("command", "shown", "said"),
    [
        ([sys.executable, "-c", WAITING, "demo"], b"ready", "Interrupted; nothing was changed."),
        ([*COMMAND, "encode", "-", "-o", "-"], b"a cat sat", AGAIN),
    ],
)
def test_a_command_that_waits_for_its_threads_or_a_pipe_ends_too(command, shown, said):
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"a cat sat\n")
        process.stdin.flush()
        assert shown in process.stdout.readline()
        assert interrupted(process) == (130, said)


def test_help_names_every_command_and_version_the_kernel():
    listed = " ".join(f"{name} {line}" for name, line in sorted(COMMANDS.items()))
    assert " ".join(HELP[""].split()).endswith(f" Commands: {listed}")
    assert Command("").succeeds("-h") == HELP[""]
    for option in ("-V", "--version"):
        assert run(option).stdout == f"ctx-embed, version {ctx_embed.__version__}\nkernel: {kernel_name()}\n"
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


def commands(group=main, names=()):
    """Every command and group with its names."""
    yield names, group
    for name in group.list_commands(None) if isinstance(group, click.Group) else ():
        yield from commands(group.get_command(None, name), (*names, name))


HELP = {" ".join(names): run(*names, "--help").stdout for names, _ in commands()}


def test_help_reads_well_and_one_thing_has_one_option_name():
    for name, each in commands():
        text = HELP[" ".join(name)]
        assert "Example: ctx-embed" in text, name
        assert not re.search(r"RANGE|  \w+  .*\.\.\.\n", text), name
        options = {option for param in each.params for option in param.opts}
        # Of two options that mean one thing, people guess the wrong one.
        assert not options & {"--out", "--size", "--text-field", "--column", "--format"}
        assert isinstance(each, click.Group) or {"--quiet", "--verbose"} <= options, name
        assert "-o" not in options or "--output" in options, name
        assert "--jsonl" not in options or "--json" in options, name
        # Only the options of architectures have a page instead of a line in the help.
        assert name in (("train",), ("distill",)) or not any(getattr(param, "hidden", False) for param in each.params)


@pytest.mark.parametrize("name", ["train", "distill"])
def test_help_leaves_options_of_the_architecture_to_their_page(name):
    hidden = {param.opts[-1] for param in command_of([name]).params if getattr(param, "hidden", False)}
    assert {"--encoder", "--option", "--steps", "--rank", "--positions", "--scale", "--initial-context"} <= hidden
    assert not hidden & set(HELP[name].split())
    page = (Path(__file__).parents[2] / "docs" / "encoders.md").read_text(encoding="utf-8")
    assert all(f"`{option} " in page for option in hidden)


def test_usage_mistakes_are_one_line():
    for line, said in (
        ("xyz", "unknown command 'xyz': known are "),
        ("index quary a", "unknown command 'quary': did you mean 'query'? known are "),
        (f"demo -k {'9' * 40}", "Invalid value for '-k'"),
        # click alone would keep only the last.
        ("index query a b --group c --group=d", "--group may be given once, got it 2 times"),
    ):
        result = run(*line.split())
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"Error: {said}" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("kind", ["onnx", "static", "site"])
def test_a_folder_with_files_is_not_replaced_unasked(here, kind):
    (here / "full").mkdir()
    file("full/thesis.txt", "years of work")
    assert Command(f"export {kind}").fails("nowhere", "-o", "full").startswith("full: already exists")


LACKING = f"ctx-embed train needs torch, which the light installation leaves out: {installation()}"
# Nor does an error control the terminal.
STRANGE = InputError("strange\nname \x1b[2J\x07\u202e: no such file")


@pytest.mark.parametrize(
    ("error", "name", "code", "said"),
    [
        (STRANGE, "train", 1, "Error: strange name ?[2J??: no such file"),
        (ModuleNotFoundError(name="torch"), "train", 1, f"Error: {LACKING}"),
        *((KeyboardInterrupt(), name, 130, f"\nInterrupted; {remedy}.") for name, remedy in RESUME.items()),
        (KeyboardInterrupt(), "predict", 130, "\nInterrupted; nothing was changed."),
        (ZeroDivisionError(), "train", 1, ""),
    ],
)
def test_what_goes_wrong_in_a_command_is_one_line_and_a_bug_keeps_its_traceback(monkeypatch, error, name, code, said):
    monkeypatch.setattr(command_of(name.split()), "make_context", Mock(side_effect=error))
    result = run(*name.split())
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", said and f"{said}\n")
    assert (result.exception is error) == isinstance(error, ZeroDivisionError)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
@pytest.mark.parametrize("kilobytes", [200_000, 300_000, 500_000])
@pytest.mark.parametrize("command", ["index query an.index x", "predict c a.txt"])
def test_too_little_address_space_is_one_line(kilobytes, command):
    found = shell(f"ulimit -v {kilobytes}; CTX {command} < /dev/null")
    assert (found.returncode, found.stdout) == (1, "")
    assert re.fullmatch(r"Error: ctx-embed needs an address space of 512 MB, got \d+ MB; raise .*\n", found.stderr)
