"""Ask twenty questions to the documentation of Node.js with grep, words, dense and hybrid; measure time and memory.

    python benchmarks/grep.py questions /usr/share/doc/nodejs/api
    python benchmarks/grep.py speed FOLDER --include '*.py'
    python benchmarks/grep.py memory /usr/share/doc/nodejs/api

The folder is that of Debian's package nodejs-doc, or doc/api in the sources of Node.js. An answer is right if it lies
in a file named here. GNU grep looks for all content words of a question at once; its first hit is the file with most
matching lines.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ctx_embed.grep import Search, grep
from ctx_embed.grep.reading import Sources
from ctx_embed.index.searching.bm25 import content_words
from ctx_embed.index.searching.relevance import DEFAULT_RELEVANCE

QUESTIONS = {
    "how do I run another program and read its output": ["child_process"],
    "read a text file line by line": ["readline", "fs"],
    "create a temporary directory": ["fs"],
    "compress data with gzip": ["zlib"],
    "hash a password with a salt": ["crypto"],
    "use several CPU cores for one server": ["cluster"],
    "how long has the computer been running": ["os"],
    "join parts of a path regardless of the operating system": ["path"],
    "find the IP address of a host name": ["dns"],
    "send a message without a connection, that may get lost": ["dgram"],
    "remember which request a callback belongs to": ["async_context", "async_hooks"],
    "what happens when a promise fails and nobody handles it": ["process", "cli"],
    "compare two objects deeply in a test": ["assert", "util"],
    "ask the user a question in the terminal": ["readline"],
    "run code in a sandbox with its own global object": ["vm"],
    "measure how long a function takes": ["perf_hooks", "console"],
    "do heavy calculations without blocking the event loop": ["worker_threads"],
    "load native code written in C++": ["addons", "n-api"],
    "tell whether a string is a valid URL and take it apart": ["url"],
    "stop reading when the receiver is too slow": ["stream"],
}
MODES = ("words", "dense", "hybrid")
SLOW_QUESTION = "how are errors of the network handled"
RIPGREP = shutil.which("rg") is not None


def by_grep(question: str, folder: Path) -> list[str]:
    """Return the files with the most lines that have a word of the question, best first."""
    words = "|".join(content_words(question))
    found = subprocess.run(
        ["grep", "-rciE", rf"\b({words})\b", folder, "--include=*.md"], capture_output=True, text=True
    ).stdout
    counts = [line.rpartition(":") for line in found.splitlines()]
    return [name for name, _, count in sorted(counts, key=lambda each: -int(each[2])) if count != "0"]


def questions(folder: Path) -> None:
    """Print for each question the file of the first hit, and the number of right ones."""
    sums = dict.fromkeys(("grep", *MODES), 0)
    among_three = dict.fromkeys(sums, 0)
    shown = 0
    print("| question | " + " | ".join(sums) + " |\n|---|" + "---|" * len(sums))
    for question, right in QUESTIONS.items():
        found = {"grep": by_grep(question, folder)}
        for mode in MODES:
            hits = grep(question, folder, k=3, mode=mode, min_relevance=0, include=["*.md"], files=True)
            found[mode] = [str(hit.id) for hit in hits]
        shown += any((hit.relevance or 0) >= DEFAULT_RELEVANCE for hit in hits)
        cells = []
        for name, files in found.items():
            stems = [Path(file).stem for file in files[:3]]
            is_right = bool(stems) and stems[0] in right
            sums[name] += is_right
            among_three[name] += any(stem in right for stem in stems)
            cells.append(f"**{stems[0]}**" if is_right else stems[0] if stems else "")
        print(f"| {question} | " + " | ".join(cells) + " |")
    print(f"| first hit right, of {len(QUESTIONS)} | " + " | ".join(map(str, sums.values())) + " |")
    print("| right among the first three files | " + " | ".join(map(str, among_three.values())) + " |")
    print(f"\nWith the default of --min-relevance, hybrid has a hit for {shown} of {len(QUESTIONS)} questions.")


def speed(folder: Path, include: Sequence[str]) -> None:
    """Print the medians of five searches: lines a second, and the time beside that of ripgrep or GNU grep for words."""
    globs = [f"--glob={glob}" for glob in include] if RIPGREP else [f"--include={glob}" for glob in include]
    program = [
        *(["rg", "-ci"] if RIPGREP else ["grep", "-rciE"]),
        "|".join(content_words(SLOW_QUESTION)),
        folder,
        *globs,
    ]
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in (*MODES, program[0])}
    for _ in range(5):
        for mode in MODES:
            search = Search(SLOW_QUESTION, mode=mode)
            wall, processor = time.perf_counter(), time.process_time()
            for _ in search.read(Sources([str(folder)], include).texts()):
                pass
            search.hits()
            taken[mode].append((time.perf_counter() - wall, time.process_time() - processor))
        wall = time.perf_counter()
        subprocess.run(program, stdout=subprocess.DEVNULL)
        taken[program[0]].append((time.perf_counter() - wall, 0))
    print("| | seconds | lines a second | lines a second of processor time |\n|---|--:|--:|--:|")
    for name, both in taken.items():
        wall, processor = (statistics.median(seconds) for seconds in zip(*both, strict=True))
        rate = f"{search.lines / processor:,.0f}" if processor else ""
        print(f"| {name} | {wall:.2f} | {search.lines / wall:,.0f} | {rate} |")


def memory(source: Path) -> None:
    """Print the peak memory of a search in the text of a folder, repeated to 20 and to 200 MB."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(source.glob("*.md")))
    for megabytes in (20, 200):
        with tempfile.TemporaryDirectory() as folder:
            large = Path(folder, "large.txt")
            with large.open("w", encoding="utf-8") as file:
                while large.stat().st_size < megabytes * 1_000_000:
                    file.write(text)
                    file.flush()
            began = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "ctx_embed", "grep", SLOW_QUESTION, large], stdout=subprocess.DEVNULL
            )
            _, _, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        peak = used.ru_maxrss / 1000
        print(f"{megabytes} MB: peak memory {peak:.0f} MB, {seconds:.0f} s, of a processor {used.ru_utime:.0f} s")


def main() -> None:
    """Run the part that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["questions", "speed", "memory"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--include", action="append", default=[], help="read only files of this glob, for speed")
    arguments = parser.parse_args()
    if arguments.part == "speed":
        speed(arguments.folder, arguments.include)
    else:
        {"questions": questions, "memory": memory}[arguments.part](arguments.folder)


if __name__ == "__main__":
    main()
