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
from tests.helpers.cli import Command, file, in_a_terminal

PASSWORDS = "Users' passwords are stored as salted hashes."
QUESTION, HIT = "how are passwords stored", f"security.md:5:{PASSWORDS}\n"
COMMAND = [sys.executable, "-m", "ctx_embed", "grep"]
GREP = Command("grep")
run = GREP.run


@pytest.fixture(autouse=True)
def tree(here) -> Path:
    """A folder of two files, which is the current one."""
    file("security.md", "# Security", "", "What we do.", "", PASSWORDS, "", "That is all.")
    file("baking.txt", "Knead the dough for ten minutes, then let it rise.")
    return here


def test_a_hit_is_printed_as_grep_prints_it_and_without_a_path_the_current_folder_or_a_pipe_is_searched():
    command = shlex.join([*COMMAND, QUESTION])
    for script, place in (
        (f"{command} . < /dev/null", "security.md:5"),
        (f"{command} < /dev/null", "security.md:5"),
        (f'printf "one\\ntwo\\n{PASSWORDS}" | {command}', "(standard input):3"),
        (f'{command} <(printf "one\\n{PASSWORDS}\\n")', ":2"),
    ):
        found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
        assert found.stdout.endswith(f"{place}:{PASSWORDS}\n"), found
        assert (found.stdout.count("\n"), found.stderr, found.returncode) == (1, "", 0)
    assert run("-rniHI", QUESTION, ".").stdout == HIT
    assert run("passwords", "-", "baking.txt", input=PASSWORDS).stdout == f"(standard input):1:{PASSWORDS}\n"


def test_context_lines():
    found = run(QUESTION, "security.md", "-B", "2", "-A", "1").stdout
    assert found == f"security.md-3-What we do.\nsecurity.md-4-\n{HIT}security.md-6-\n"
    assert run("passwords", ".", "-C", "1", "--min-relevance", "0").stdout.count("--\n") == 1
    # A sentence of several lines is printed whole.
    lines = (
        "Everybody has an account of their own. The passwords of",
        "all users are stored as hashes with salt. Nobody may read them, not",
        "even the administrators.",
    )
    found = run(QUESTION, file("long.txt", *lines), "-C", "1").stdout
    assert found == "long.txt:1:{}\nlong.txt:2:{}\nlong.txt-3-{}\n".format(*lines)


def test_json_lines_files_and_nothing_found():
    (found,) = map(json.loads, run(QUESTION, ".", "--json").stdout.splitlines())
    assert (found["path"], found["line"], found["nearest_line"]) == ("security.md", 1, 5)
    assert found["nearest"] == found["text"][slice(*found["highlight"])] == PASSWORDS
    assert found["relevance"] > 0.9
    assert run("passwords", ".", "-l").stdout == "security.md\n"
    found = run("which river flows through Vienna?", ".")
    assert (found.stdout, found.exit_code) == ("", 1)
    assert "--min-relevance 0 shows the nearest" in found.stderr
    for question in ('"purple passwords"', '"users of" the "purple passwords"'):
        found = run(question, ".")
        assert (found.stdout, found.exit_code) == ("", 1)
        assert re.fullmatch(r'no hits: no passage has .*"purple passwords"; without the marks.*\n', found.stderr)


def test_mistakes_are_one_line_and_status_2(tree):
    SearchIndex.create(tree / "a.index").close()
    for path, said in (
        ("nowhere", "nowhere: no such file or folder"),
        ("a.index", "is a search index; search it with ctx-embed index query"),
    ):
        assert said in GREP.fails("x", path, code=2)
    # An index is not searched as files.
    assert run("passwords", ".", "--min-relevance", "0", "-l").stdout == "security.md\nbaking.txt\n"
    # After the hits, a file that cannot be read is status 2 as well.
    (tree / "broken.txt.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    found = run("passwords", ".")
    assert (found.stdout, found.exit_code) == (HIT, 2)
    assert found.stderr.startswith("could not read broken.txt.gz (broken gzip")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(number):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*COMMAND, "passwords", "-"], bufsize=0, **pipes) as process:
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
    shown = (
        f"\x1b[35msecurity.md\x1b[0m\x1b[36m:\x1b[0m\x1b[32m5\x1b[0m\x1b[36m:\x1b[0m\x1b[31m\x1b[1m{PASSWORDS}\x1b[0m"
    )
    # A slow machine adds the advice to build an index.
    assert text.rpartition("\r\x1b[K")[2].startswith(shown)
