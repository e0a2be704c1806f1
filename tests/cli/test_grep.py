"""`ctx-embed grep` as a process, with the shipped model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from ctx_embed.cli.main import main

PASSWORDS = "Users' passwords are stored as salted hashes."
COMMAND = [sys.executable, "-m", "ctx_embed", "grep"]


@pytest.fixture(autouse=True)
def tree(here) -> Path:
    """A folder of two files, which is the current one."""
    (here / "security.md").write_text(f"# Security\n\nWhat we do.\n\n{PASSWORDS}\n\nThat is all.\n")
    (here / "baking.txt").write_text("Knead the dough for ten minutes, then let it rise.\n")
    return here


def run(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    stream = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, **stream)


def test_a_hit_is_printed_as_grep_prints_it():
    found = run("how are passwords stored", ".")
    assert (found.stdout, found.stderr, found.returncode) == (f"security.md:5:{PASSWORDS}\n", "", 0)


def test_options_of_grep_are_known():
    assert run("-rniHI", "how are passwords stored", ".").stdout == f"security.md:5:{PASSWORDS}\n"
    ways = {
        "use grep itself": ("-v", "-E", "-cF", "--null", "--invert-match", "--files-without-match"),
        "is a phrase": ("-rnw", "--word-regexp"),
        "-k N": ("-m3", "--max-count=3"),
        "--follow-links": ("-R",),
        "coloured in a terminal": ("--color=auto",),
        "leaves out a folder": ("--exclude-dir=x",),
        "2>/dev/null": ("-s",),
        "--encoding": ("-a",),
    }
    for said, options in ways.items():
        for option in options:
            failed = CliRunner().invoke(main, ["grep", option, "how are passwords stored", "."])
            assert (failed.stdout, failed.exit_code) == ("", 2)
            assert re.search(rf"Error: there is no option -.+: .*{re.escape(said)}", failed.stderr)


def test_without_a_path_the_current_folder_or_a_pipe_is_searched():
    assert run("how are passwords stored").stdout == f"security.md:5:{PASSWORDS}\n"
    assert run("passwords", given=f"one\ntwo\n{PASSWORDS}\n").stdout == f"(standard input):3:{PASSWORDS}\n"
    assert run("passwords", "-", "baking.txt", given=PASSWORDS).stdout == f"(standard input):1:{PASSWORDS}\n"


def test_context_lines():
    found = run("how are passwords stored", "security.md", "-B", "2", "-A", "1").stdout
    assert found.splitlines() == [
        "security.md-3-What we do.",
        "security.md-4-",
        f"security.md:5:{PASSWORDS}",
        "security.md-6-",
    ]
    assert run("passwords", ".", "-C", "1", "--min-relevance", "0").stdout.count("--\n") == 1


def test_a_sentence_of_several_lines_is_printed_whole(tree):
    (tree / "long.txt").write_text(
        "Everybody has an account of their own. The passwords of\nall users are stored as hashes with salt. Nobody may "
        "read them, not\neven the administrators.\n"
    )
    found = run("how are passwords stored", "long.txt", "-C", "1").stdout
    assert found.splitlines() == [
        "long.txt:1:Everybody has an account of their own. The passwords of",
        "long.txt:2:all users are stored as hashes with salt. Nobody may read them, not",
        "long.txt-3-even the administrators.",
    ]


def test_json_lines_and_files():
    (found,) = map(json.loads, run("how are passwords stored", ".", "--json").stdout.splitlines())
    assert (found["path"], found["line"], found["nearest_line"]) == ("security.md", 1, 5)
    assert found["nearest"] == found["text"][slice(*found["highlight"])] == PASSWORDS
    assert found["relevance"] > 0.9
    assert run("passwords", ".", "-l").stdout == "security.md\n"


def test_nothing_found_is_status_1():
    found = run("which river flows through Vienna?", ".")
    assert (found.stdout, found.returncode) == ("", 1)
    assert "--min-relevance 0 shows the nearest" in found.stderr
    assert run("xylophone", ".", "--mode", "words").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x", "nowhere"], "Error: nowhere: no such file or folder\n"),
        (["?", "."], "Error: the question must have a word, got '?'\n"),
        (["x", ".", "--include", ""], "Error: --include and --exclude must be globs such as '*.md', got ''\n"),
        (["x", ".", "--model", "./nowhere"], "nowhere"),
        (["x", ".", "-k", "0"], "0 is not in the range"),
        ([], "Missing argument"),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments, said):
    found = run(*arguments)
    assert (found.stdout, found.returncode) == ("", 2)
    assert said in found.stderr
    assert "Traceback" not in found.stderr


def test_a_file_that_cannot_be_read_is_status_2_after_the_hits(tree):
    (tree / "broken.txt.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    found = run("passwords", ".")
    assert found.stdout == f"security.md:5:{PASSWORDS}\n"
    assert found.returncode == 2
    assert found.stderr.startswith("could not read broken.txt.gz (broken gzip")


HOSTILE = "\x1b]0;owned\x07\x1b[9;9H\u202e.md"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("arguments", [[], ["-l"], ["--encoding", "nonsense"], ["-C", "1"]])
def test_names_of_files_do_not_control_the_terminal(tree, arguments):
    import pty

    (tree / "security.md").rename(tree / HOSTILE)
    (tree / f"{HOSTILE}.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    ours, theirs = pty.openpty()
    command = [*COMMAND, "how are passwords stored", ".", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        # A terminal whose other end is closed is an error.
        with suppress(OSError):
            while part := os.read(ours, 4096):
                shown += part
        assert process.wait() == 2
    os.close(ours)
    text = re.sub(r"\x1b\[[\d;]*[mAJ]", "", shown.decode())
    assert all(character.isprintable() or character in "\r\n" for character in text), text
    assert ".md" in text or "encoding" in text


def test_an_index_is_not_searched_as_files(tree):
    subprocess.run([*COMMAND[:-1], "index", "build", "security.md", "a.index"], check=True, capture_output=True)
    assert "is a search index; search it with ctx-embed index query" in run("passwords", "a.index").stderr
    assert run("passwords", ".", "--min-relevance", "0", "-l").stdout == "security.md\nbaking.txt\n"


def test_a_pipe_is_read_to_its_end():
    script = f'{" ".join(COMMAND)} passwords <(printf "one\\n{PASSWORDS}\\n")'
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert found.stdout.endswith(f":2:{PASSWORDS}\n"), found


def test_a_closed_pipe_ends_it_quietly():
    script = f"{' '.join(COMMAND)} passwords . --min-relevance 0 -C 9 | true"
    found = subprocess.run(script, shell=True, capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("", "")


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
    pty = pytest.importorskip("pty")
    (tree / "large.txt").write_text("The weather was fine and nothing else happened that day.\n\n" * 300_000)
    main, terminal = pty.openpty()
    process = subprocess.Popen([*COMMAND, "passwords", "."], stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    try:
        while block := os.read(main, 1 << 16):
            shown += block
    except OSError:
        pass
    finally:
        os.close(main)
    assert process.wait(120) == 0
    text = shown.decode()
    assert "lines searched ..." in text
    assert "\x1b[J" in text
    # A slow machine adds the advice to build an index.
    assert text.rpartition("\x1b[J")[2].startswith(
        f"\x1b[35msecurity.md\x1b[0m\x1b[36m:\x1b[0m\x1b[32m5\x1b[0m\x1b[36m:\x1b[0m\x1b[31m\x1b[1m{PASSWORDS}\x1b[0m"
    )
