"""Twenty questions to Python's documentation: how many have a right first hit, in each search mode.

python benchmarks/questions.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ctx_embed import SearchIndex
from ctx_embed.cli.demo import standard_library_docstrings
from ctx_embed.index.searching.options import MODES

# The names of the docstrings that answer each question; a name that ends with a dot stands for all that begin with it.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "remove a folder and everything in it": ("shutil.rmtree",),
    "is it a leap year?": ("calendar.isleap",),
    "ask for a password without showing it": ("getpass", "getpass.unix_getpass", "getpass.win_getpass"),
    "shuffle a list in place": ("random.Random.shuffle",),
    "find words that are spelled alike": ("difflib.get_close_matches",),
    "the middle value of some numbers": ("statistics.median", "statistics.median_low", "statistics.median_high"),
    "remove common leading whitespace from each line": ("textwrap.dedent",),
    "check if a file is a zip archive": ("zipfile.is_zipfile",),
    "remember the results of a function": ("functools.lru_cache", "functools.cache"),
    "wait for a child process to end": ("subprocess.Popen.wait", "subprocess.Popen.communicate"),
    "size of the terminal window": ("shutil.get_terminal_size", "os.get_terminal_size"),
    "replace special characters in HTML": ("html.escape",),
    "block until all items of a queue were processed": ("queue.Queue.join", "asyncio.queues.Queue.join"),
    "parse a JSON document from a string": ("json.loads",),
    "pretty-print a nested data structure": ("pprint", "pprint.pprint", "pprint.PrettyPrinter", "pprint.pformat"),
    "escape a string for the shell": ("shlex.quote",),
    "join a base URL and a relative one": ("urllib.parse.urljoin",),
    "the n largest elements of a data set": ("heapq.nlargest",),
    "create a temporary directory that is removed when done": ("tempfile.TemporaryDirectory", "tempfile.mkdtemp"),
    "open the default browser at an address": ("webbrowser.open", "webbrowser.open_new", "webbrowser.open_new_tab"),
}


def main() -> None:
    """Print the first hit of each question and mode, marked if it is right, and the sums."""
    named = standard_library_docstrings()
    texts = [f"{name.replace('.', ' ').replace('_', ' ')}: {text}" for name, text in named.items()]
    right = dict.fromkeys(MODES, 0)
    with tempfile.TemporaryDirectory() as work, SearchIndex.create(Path(work) / "index") as index:
        index.add(texts, list(named))
        for question, names in QUESTIONS.items():
            firsts = []
            for mode in MODES:
                (hit,) = index.search(question, 1, mode=mode) or [None]
                found = hit is not None and hit.id in names
                right[mode] += found
                firsts.append(f"{'+' if found else '-'} {'none' if hit is None else hit.id}")
            print("| " + " | ".join([question, *firsts]) + " |")
    print(f"| right of {len(QUESTIONS)} | " + " | ".join(map(str, right.values())) + " |")


if __name__ == "__main__":
    main()
