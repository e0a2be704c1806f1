"""No command lets texts, names or metadata control the terminal; files and pipes get them as they are."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ctx_embed import SearchIndex, TextClassifier
from tests.helpers.cli import in_a_terminal

CONTROLS = {*map(chr, (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)))}
# Line ends are removed where text is a line.
ODD = "".join(sorted(CONTROLS - set("\0\r\x0b\x0c\x1c\x1d\x1e\x85"))) + "\x1b[31mred\x1b]0;owned\x07"
NAME = "\x1b[31mred\x1b]0;owned\x07\x1b[9;9H\x9b2J\u202e"
TEXT = f"The ferry {ODD} to the island leaves at nine."
# Colours, links, removed lines and the cursor's way up, of commands and progress bars.
OWN = re.compile(r"\x1b\[[\d;]*m|\x1b\]8;;[!-~]*\x1b\\|\r\x1b\[K|\x1b\[A|\r")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A folder with odd texts in files with odd names, an index of odd documents, and a classifier with odd labels."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "notes").mkdir()
    # Few controls, or the file is taken for a binary one.
    (folder / "notes" / f"{NAME}.md").write_text(f"# Ferries {NAME}\n\nThe ferry {NAME} leaves at nine.\n")
    (folder / "notes" / f"{NAME}.txt.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", f"of{ODD}", "label"], *[[TEXT, ODD, "a"]] * 2])
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": TEXT, "label": ODD}) + "\n" for _ in range(9)))
    (folder / "lines.txt").write_text(f"{TEXT}\n{TEXT}\n")
    with SearchIndex.create(folder / f"{NAME}.index") as index:
        metadata = {"tag": f"a {ODD}", f"name{ODD}": ODD, "title": f"Title {ODD}"}
        index.add([TEXT] * 3, ids=[f"{number}{ODD}" for number in range(3)], metadata=[metadata] * 3)
    TextClassifier().fit([TEXT, "Prices rose in spring."] * 8, [f"l{ODD}", "b"] * 8).save(folder / "classifier")
    return folder


COMMAND = (sys.executable, "-m", "ctx_embed")
INDEX = f"{NAME}.index"
COMMANDS = [
    *[f"index query {{}} ferry {form}" for form in ("", "--json", "--jsonl", "--csv", "--group tag", "--context 1")],
    *[f"index {rest}" for rest in ("get {}", "get {} {odd}", "similar {} 0{odd}", "facets {} tag", "facets {} {odd}")],
    *[f"index {rest}" for rest in ("facets {} tag --json", "duplicates {}", "topics {} -k 1", "info {}", "verify {}")],
    *[f"index {rest}" for rest in ("query {} {odd}", "query {} ferry --where {odd}=1", "delete {} {odd} --dry-run")],
    *[f"index {rest}" for rest in ("set {} {odd} -m {odd}=1", "count {} --where {odd}", "build notes b.index")],
    *[f"index {rest}" for rest in ("query b.index ferry", "sync b.index", "build table.csv c.index", "info {odd}")],
    *[f"grep ferry notes {form}" for form in ("", "--json", "-l", "-C 1")],
    *[f"predict classifier rows.jsonl {form}" for form in ("", "--json", "--jsonl", "--evaluate", "--field {odd}")],
    *[f"encode {rest}" for rest in ("lines.txt", "table.csv -o {odd}.jsonl", "rows.jsonl --field {odd}")],
    *[f"dedupe {name} -o -" for name in ("lines.txt", "table.csv")],
    *["explain --input lines.txt", "explain --input lines.txt --json", "encode rows.jsonl --model {odd}"],
    *["{odd}", "index {odd}", "serve {}{odd}", "train {odd}", "mcp {odd}", "grep --{odd}", "systems --{odd}"],
]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_lets_text_control_the_terminal(hostile, monkeypatch, command):
    monkeypatch.chdir(hostile)
    _, shown = in_a_terminal(*COMMAND, *[part.format(INDEX, odd=ODD) for part in command.split()])
    assert shown.strip()
    assert "Traceback" not in shown, shown
    assert not CONTROLS.intersection(OWN.sub("", shown)), shown
    assert "\x1b[31mred" not in shown
    assert "\x1b]0;" not in shown


def test_bars_move_the_cursor_and_nothing_else_does():
    code = """import sys
from ctx_embed.cli.terminal import guard, styled
guard()
print("over\\rwritten\\r\\nlone \\ud800 \\x1b[1mbold")
sys.stdout.buffer.write("Zürich \\x9b".encode()[:3]), sys.stdout.buffer.write("Zürich \\x9b".encode()[3:] + b"\\xff\\n")
print("\\x1b[1mbold\\x1b[2J", file=styled(sys.stdout))
for part in ("\\rbar", "\\n\\x1b[A", "\\r   \\r", "no\\rbar\\n"):
    sys.stderr.write(part)
"""
    shown = r"over\u000dwritten|lone \ud800 \u001b[1mbold|Zürich \u009b\xff|" + "\x1b[1mbold\\u001b[2J|"
    shown += "\rbar|\x1b[A\r   \rno\\u000dbar|"
    assert in_a_terminal(sys.executable, "-c", code)[1].replace("\r\r\n", "\r\n").replace("\r\n", "|") == shown
    # What is flushed is there before the program ends.
    code = """import os
from ctx_embed.cli.terminal import guard
guard()
print("first", end=" ", flush=True)
os.write(1, b"second")
"""
    assert in_a_terminal("env", "-u", "PYTHONUNBUFFERED", sys.executable, "-c", code)[1] == "first second"


def test_files_and_pipes_get_texts_as_they_are(hostile):
    def printed(*arguments: str) -> str:
        return subprocess.run([*COMMAND, *arguments], cwd=hostile, capture_output=True, check=True).stdout.decode()

    document = json.loads(printed("index", "get", INDEX, f"0{ODD}"))
    assert (document["text"], document["metadata"]["tag"]) == (TEXT, f"a {ODD}")
    assert next(csv.DictReader(io.StringIO(printed("index", "query", INDEX, "ferry", "--csv"))))["text"] == TEXT
    assert printed("dedupe", "lines.txt", "-o", "-") == f"{TEXT}\n"
