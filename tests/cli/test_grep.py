"""`ctx-embed grep` with the shipped model."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ctx_embed import SearchIndex
from tests.helpers.cli import Command, in_a_terminal

PASSWORDS = "Users' passwords are stored as salted hashes."
QUESTION, HIT = "how are passwords stored", f"security.md:5:{PASSWORDS}\n"
COMMAND = [sys.executable, "-m", "ctx_embed", "grep"]
run = Command("grep").run


@pytest.fixture(autouse=True)
def tree(here) -> Path:
    """A folder of two files, which is the current one."""
    (here / "security.md").write_text(f"# Security\n\nWhat we do.\n\n{PASSWORDS}\n\nThat is all.\n")
    (here / "baking.txt").write_text("Knead the dough for ten minutes, then let it rise.\n")
    return here


def test_a_hit_is_printed_as_grep_prints_it():
    found = subprocess.run([*COMMAND, QUESTION, "."], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (found.stdout, found.stderr, found.returncode) == (HIT, "", 0)
    assert run("-rniHI", QUESTION, ".").stdout == HIT


def test_without_a_path_the_current_folder_or_a_pipe_is_searched():
    command = shlex.join([*COMMAND, "passwords"])
    for script, place in (
        (f"{command} < /dev/null", "security.md:5"),
        (f'printf "one\\ntwo\\n{PASSWORDS}" | {command}', "(standard input):3"),
        (f'{command} <(printf "one\\n{PASSWORDS}\\n")', ":2"),
    ):
        found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
        assert found.stdout.endswith(f"{place}:{PASSWORDS}\n"), found
    assert run("passwords", "-", "baking.txt", input=PASSWORDS).stdout == f"(standard input):1:{PASSWORDS}\n"


def test_context_lines(tree):
    found = run(QUESTION, "security.md", "-B", "2", "-A", "1").stdout
    assert found.splitlines() == [
        "security.md-3-What we do.",
        "security.md-4-",
        f"security.md:5:{PASSWORDS}",
        "security.md-6-",
    ]
    assert run("passwords", ".", "-C", "1", "--min-relevance", "0").stdout.count("--\n") == 1
    # A sentence of several lines is printed whole.
    (tree / "long.txt").write_text(
        "Everybody has an account of their own. The passwords of\nall users are stored as hashes with salt. Nobody may "
        "read them, not\neven the administrators.\n"
    )
    assert run(QUESTION, "long.txt", "-C", "1").stdout.splitlines() == [
        "long.txt:1:Everybody has an account of their own. The passwords of",
        "long.txt:2:all users are stored as hashes with salt. Nobody may read them, not",
        "long.txt-3-even the administrators.",
    ]


def test_json_lines_files_and_nothing_found():
    (found,) = map(json.loads, run(QUESTION, ".", "--json").stdout.splitlines())
    assert (found["path"], found["line"], found["nearest_line"]) == ("security.md", 1, 5)
    assert found["nearest"] == found["text"][slice(*found["highlight"])] == PASSWORDS
    assert found["relevance"] > 0.9
    assert run("passwords", ".", "-l").stdout == "security.md\n"
    found = run("which river flows through Vienna?", ".")
    assert (found.stdout, found.exit_code) == ("", 1)
    assert "--min-relevance 0 shows the nearest" in found.stderr
    assert run("xylophone", ".", "--mode", "words").exit_code == 1
    for question in ('"purple passwords"', 'the "purple passwords" of users', '"users of" the "purple passwords"'):
        found = run(question, ".")
        assert (found.stdout, found.exit_code) == ("", 1)
        assert re.fullmatch(r'no hits: no passage has .*"purple passwords"; without the marks.*\n', found.stderr)


def test_mistakes_are_one_line_and_status_2(tree):
    SearchIndex.create(tree / "a.index").close()
    for arguments, said in (
        (["x", "nowhere"], "Error: nowhere: no such file or folder\n"),
        (["x", "a.index"], "is a search index; search it with ctx-embed index query"),
    ):
        found = run(*arguments)
        assert (found.stdout, found.exit_code) == ("", 2)
        assert said in found.stderr
    # An index is not searched as files.
    assert run("passwords", ".", "--min-relevance", "0", "-l").stdout == "security.md\nbaking.txt\n"
    # After the hits, a file that cannot be read is status 2 as well.
    (tree / "broken.txt.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    found = run("passwords", ".")
    assert (found.stdout, found.exit_code) == (HIT, 2)
    assert found.stderr.startswith("could not read broken.txt.gz (broken gzip")


HOSTILE = "\x1b]0;owned\x07\x1b[9;9H\u202e.md"


@pytest.mark.parametrize("arguments", [["-l"], ["--encoding", "nonsense"], ["-C", "1"]])
def test_names_of_files_do_not_control_the_terminal(tree, arguments):
    (tree / "security.md").rename(tree / HOSTILE)
    (tree / f"{HOSTILE}.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    status, text = in_a_terminal(*COMMAND, QUESTION, ".", *arguments)
    assert status == 2
    text = re.sub(r"\x1b\[[\d;]*[mK]", "", text)
    assert all(character.isprintable() or character in "\r\n" for character in text), text
    assert ".md" in text or "encoding" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(number):
    process = subprocess.Popen(
        [*COMMAND, "passwords", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    with process:
        process.stdin.write(PASSWORDS.encode() * 10_000)
        time.sleep(1.5)
        process.send_signal(number)
        assert process.wait(10) == 128 + number
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")


def test_a_terminal_shows_colours_and_the_best_hits_so_far(tree):
    (tree / "z.txt").write_text("The weather was fine and nothing else happened that day.\n\n" * 300_000)
    status, text = in_a_terminal(*COMMAND, "passwords", ".")
    assert status == 0
    assert re.search(r"lines searched, best: security.md:5:" + re.escape(PASSWORDS[:20]), text)
    # A slow machine adds the advice to build an index.
    assert text.rpartition("\r\x1b[K")[2].startswith(
        f"\x1b[35msecurity.md\x1b[0m\x1b[36m:\x1b[0m\x1b[32m5\x1b[0m\x1b[36m:\x1b[0m\x1b[31m\x1b[1m{PASSWORDS}\x1b[0m"
    )
