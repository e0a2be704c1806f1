"""Put the tables and pictures of stored results into the pages that show them.

python benchmarks/pages.py [--plots]

Each table of TABLES takes the place of the one with the same first line in its page; a test compares the two. README's
sentence on speed is printed by `python benchmarks/jobs.py --json benchmarks/jobs.json --claim`.
"""

import subprocess
import sys
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parent.parent
CARD = "ctx_embed/pretrained/default/README.md"
ATTENTION = ("steps", "length", "heads", "positions", "contrasts")
# The arguments of the script that prints a table, and the page that shows it.
TABLES = {
    "jobs.py --json benchmarks/jobs.json --table": "docs/performance.md",
    "peers.py table": "docs/performance.md",
    "longdocs.py --table": "docs/performance.md",
    "classifiers.py --table": "docs/training.md",
    "peers.py mteb": "docs/evaluation.md",
    "peers.py readme": "README.md",
    "jobs.py --json benchmarks/jobs.json --calls": "README.md",
    "distilled.py --table": "docs/tutorials/distil.md",
    "site.py --table": "docs/site.md",
    **{f"attention.py --table {name}": "docs/lab/attention.md" for name in ATTENTION},
    "overlap.py --table": CARD,
    "truncation.py --table": CARD,
}
PLOTS = ("peers.py plot", "longdocs.py --plot", "classifiers.py --plot", "attention.py --plot")
CLAIM = "jobs.py --json benchmarks/jobs.json --claim"


def printed(command: str) -> str:
    """Return what a script of this folder prints."""
    script, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def replaced(page: str, table: str) -> str:
    """Return the page with the table in the place of the one that has the same first line."""
    lines, new = page.split("\n"), table.rstrip("\n").split("\n")
    if new[0] not in lines:
        raise SystemExit(f"no table begins with {new[0]!r}")
    start = lines.index(new[0])
    old = len(list(takewhile(lambda line: line.startswith("|"), lines[start:])))
    return "\n".join([*lines[:start], *new, *lines[start + old :]])


def main() -> None:
    for command, name in TABLES.items():
        page = ROOT / name
        page.write_text(replaced(page.read_text(encoding="utf-8"), printed(command)), encoding="utf-8")
    if "--plots" in sys.argv[1:]:
        for command in PLOTS:
            printed(command)


if __name__ == "__main__":
    main()
