"""Workers have limits on time and memory, read in order, import nothing heavy and end with their parent."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from ctx_embed.documents.decoding import UnreadableFileError
from ctx_embed.documents.extraction import Extraction
from ctx_embed.documents.formats import extract
from ctx_embed.errors import InputError
from ctx_embed.rows.reading import read_documents
from tests.documents.samples import FIRST, ipynb, odt


def workers() -> list[psutil.Process]:
    """Return the worker processes of this one."""
    return [child for child in psutil.Process().children() if "ctx_embed.documents.extraction" in child.cmdline()]


def test_files_are_read_in_order_in_and_out_of_workers(tmp_path):
    paths = []
    for number in range(40):
        path = tmp_path / f"{number}.{'odt' if number % 3 else 'txt'}"
        odt(path) if number % 3 else path.write_text(f"text {number}")
        paths.append(str(path))
    paths[5:5] = [None]
    with Extraction(workers=2) as extraction:
        found = list(extraction.read(enumerate(paths)))
    assert [(item, len(texts)) for item, texts in found] == [(item, int(item != 5)) for item in range(41)]


SLOW = ("slow.html", "<p>some words of a page</p>" * 1_500_000, {"seconds": 2}, "takes longer than 2 s")
# A small file whose cells take 64 bytes each in memory.
CELLS = '{"cells": [' + ", ".join(["{}"] * 6_000_000) + "]}"
LARGE = ("a.ipynb", CELLS, {"megabytes": 350}, "needs more than 350 MB of memory")
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by the system")


@pytest.mark.parametrize(
    ("name", "content", "limit", "said"), [SLOW, pytest.param(*LARGE, marks=linux)], ids=["s", "MB"]
)
def test_a_file_that_takes_too_much_is_named_and_the_next_one_is_read(tmp_path, name, content, limit, said):
    bad, good = tmp_path / name, tmp_path / "good.ipynb"
    bad.write_text(content)
    ipynb(good)
    with Extraction(workers=1, **limit) as extraction:
        found = [result for _, result in extraction.read([(0, str(bad)), (1, str(good))])]
    assert str(found[0]) == said
    assert FIRST in found[1][0].text


def test_a_reader_that_crashes(tmp_path):
    path = tmp_path / "a.odt"
    odt(path)
    with Extraction(workers=1) as extraction:
        list(extraction.read([(0, str(path))]))
        (worker,) = workers()
        worker.kill()
        ((_, found),) = extraction.read([(0, str(path))])
        assert str(found) == "ends the process that reads it"
        ((_, found),) = extraction.read([(0, str(path))])
        assert FIRST in found[0].text


def test_leaving_early_ends_all_workers(tmp_path):
    slow = tmp_path / "slow.odt"
    os.mkfifo(slow)
    begun = time.monotonic()
    reading = None
    with suppress(KeyboardInterrupt), Extraction(workers=2) as extraction:
        good = tmp_path / "good.odt"
        odt(good)
        reading = extraction.read((path, str(path)) for path in [good] + [slow] * 100)
        # Both workers are at work when this comes back.
        assert next(reading)[0] == good
        raise KeyboardInterrupt
    assert time.monotonic() - begun < 20
    assert workers() == []


def test_a_worker_imports_nothing_heavy(tmp_path):
    path = tmp_path / "a.odt"
    odt(path)
    script = (
        "import io, json, sys\n"
        "from ctx_embed.documents import extraction\n"
        f"sys.argv, sys.stdin = ['worker', '4096'], io.StringIO(json.dumps([{str(path)!r}, '']))\n"
        "sys.stderr = open(sys.stderr.fileno(), 'w', closefd=False)\n"
        "extraction.main()\n"
        "print('modules:', *sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert FIRST in json.loads(done.stdout)["texts"][0]["text"]
    modules = set(done.stderr.rpartition("modules:")[2].split())
    assert modules & {"torch", "transformers", "faiss", "numpy", "sklearn", "pyarrow"} == set()


def test_formats_without_their_library(tmp_path, monkeypatch):
    from ctx_embed.documents import formats

    monkeypatch.setattr(formats, "find_spec", lambda module: None)
    with Extraction(workers=1) as extraction:
        ((_, found),) = extraction.read([(0, str(tmp_path / "a.pdf"))])
    assert isinstance(found, UnreadableFileError)
    assert str(found) == ".pdf needs the extra documents"


@pytest.mark.parametrize("suffix", ["txt", "py", "html", "docx", "pdf", "jsonl", "parquet"])
def test_a_pointer_of_git_lfs_is_no_text(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 39\n")
    if suffix != "parquet":
        with pytest.raises(UnreadableFileError, match=r"^a pointer of git-lfs in place of the file; fetch the file"):
            list(extract(str(path)))
    with pytest.raises(InputError, match=f"{path}: a pointer of git-lfs in place of the file; fetch the file"):
        list(read_documents(path))
