"""Work grows as what is given: four times as much takes at most six times as long, and six times the memory."""

import re
import signal
import sys

import click
import pytest

from ctx_embed import SearchIndex
from ctx_embed.cli.main import main
from ctx_embed.reading import tables
from ctx_embed.reading.formats import FORMATS
from tests.bounded.growth import TIMES_COST, Entry, growth, strings

for package in ("docx", "fastapi", "pptx", "openpyxl", "pypdf", "pyarrow", "rapidfuzz"):
    pytest.importorskip(package)

from tests.bounded import patterns  # noqa: E402  # what they import may be missing
from tests.bounded.entries import ANALYSES, ENTRIES, OTHERS, PATTERN_OPTIONS, READING, ROWS  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(sys.platform == "win32", reason="its processor time is too coarse"),
]


@pytest.fixture(autouse=True)
def _patience():
    """End a test whose work explodes: Python's regular expressions look for signals."""

    def late(*_):
        raise TimeoutError("took more than a minute of the processor")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, 60)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def fallen(entry: Entry) -> str | None:
    """The first family for which a call takes too much."""
    for family, make in entry.families.items():
        n, seconds, memory = growth(entry, make)
        if max(seconds, memory) > TIMES_COST:
            return f"{family}: {seconds:.1f} times as long, {memory:.1f} times the memory for {4 * n:,} as for {n:,}"
    return None


@pytest.mark.parametrize("name", ENTRIES)
def test_work_grows_as_what_is_given(name):
    assert fallen(ENTRIES[name]) is None


def test_each_pattern_takes_linear_time_as_it_is_called():
    files = [path for folder in patterns.FOLDERS for path in folder.rglob("*.py") if path.stem != "__main__"]
    used = set().union(*map(patterns.uses, files))
    assert len({pattern for pattern, _ in used}) > 90
    wrong = {}
    for pattern, method in used:
        most = patterns.BOUNDED.get(pattern, 1 << 14)
        wrong[pattern, method] = fallen(Entry(patterns.caller(pattern, method), patterns.attacks(pattern), most))
    assert [(*use, said) for use, said in wrong.items() if said] == []


def test_all_readers_are_named():
    # ENTRIES cannot be made without each format of documents.
    named = {known.rows for known in FORMATS.values() if known.rows}
    assert set(ROWS) == named | {tables.TEXT, tables.LABELLED, tables.JSON}
    public = {name for name in dir(SearchIndex) if not name.startswith("_")}
    assert {*READING, *ANALYSES} == public - OTHERS


def test_all_options_that_are_patterns_are_named():
    found, groups = set[str](), [main]
    while groups:
        group = groups.pop()
        context = click.Context(group)
        for command in [group.get_command(context, name) for name in group.list_commands(context)]:
            groups += [command] if isinstance(command, click.Group) else []
            found |= {of.name for of in command.params if re.search("GLOB|FILTER|REGEX|PATTERN", str(of.metavar), re.I)}
    assert found == {*PATTERN_OPTIONS}
    assert {*PATTERN_OPTIONS.values()} <= {*ENTRIES}


def test_what_grows_faster_is_noticed():
    assert fallen(Entry(lambda text: sum(map(text.count, text)), strings("a"), 1 << 14))
    assert fallen(Entry(len, strings("a"))) is None
    # A pattern that took quadratic time, and one that looks again from each start, by the strings made from them.
    soft_hyphens = "\xad(?![\xad\u200b-\u200d]*[^\\W_])|[\xad\u200b-\u200d]", "sub", 1 << 12
    for wrong, method, most in (soft_hyphens, ("a+b", "search", 1 << 14)):
        pattern = re.compile(wrong)
        assert fallen(Entry(patterns.caller(pattern, method), patterns.attacks(pattern), most))
