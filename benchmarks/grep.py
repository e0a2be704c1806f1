"""Ask twenty questions to the documentation of Node.js with grep, words, dense and hybrid.

    python benchmarks/grep.py /usr/share/doc/nodejs/api

The folder is that of Debian's package nodejs-doc, or doc/api in the sources of Node.js. An answer is right if it lies
in a file named here. GNU grep looks for all content words of a question at once; its first hit is the file with most
matching lines.
"""

import subprocess
import sys
from pathlib import Path

from ctx_embed.grep import grep
from ctx_embed.index.hits import DEFAULT_RELEVANCE
from ctx_embed.index.words import asked

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


def by_grep(question: str, folder: Path) -> list[str]:
    """Return the files with the most lines that have a word of the question, best first."""
    words = "|".join(asked(question).words)
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


if __name__ == "__main__":
    questions(Path(sys.argv[1]))
