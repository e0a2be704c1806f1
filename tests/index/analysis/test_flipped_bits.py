"""A flipped bit anywhere in the database changes no answer, or `verify` reports it; no answer has other contents."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from contextlib import suppress

import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.numpy_model import Embedder
from ctx_embed.numpy_model.saved import DEFAULT_MODEL
from tests.conftest import SENTENCES

QUERIES = ("a question about the weather", "prices", '"the film"')


def contents(index, path) -> dict[str, list]:
    """Return what each way of reading answers; an error is an answer, too."""
    found: dict[str, list] = {}

    def read(name, work) -> None:
        try:
            found[name] = [json.dumps(answer, sort_keys=True) for answer in work()]
        except InputError:
            found[name] = ["error"]

    read("documents", lambda: [[d.id, d.text, d.metadata] for d in index.documents()])
    for identifier in (1, 2, 5, "document 0", "document 3"):
        read(f"get {identifier}", lambda wanted=identifier: [one(index.get(wanted))])
    for mode in ("dense", "words", "hybrid"):
        for query in QUERIES:
            read(f"{mode} {query}", lambda query=query, mode=mode: hits(index, query, mode))
    read("export", lambda: exported(index, path.with_name("out")))
    return found


def one(document) -> list:
    return [] if document is None else [document.id, document.text, document.metadata]


def hits(index, query, mode) -> list:
    found = index.search(query, 5, mode=mode, document=True)
    return [answer for hit in found for answer in ([hit.id, hit.document, hit.metadata], [hit.id, hit.text])]


def exported(index, path) -> list:
    index.export(path)
    lines = [json.loads(line) for line in path.with_name(f"{path.name}.jsonl").read_text().splitlines()]
    return [answer for line in lines for answer in ([line["id"], line["text"]], [line["id"], line["metadata"]])]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "index"
    pairs = itertools.permutations(SENTENCES, 2)
    texts = [f"{first} {second} Number {number}." for number, (first, second) in enumerate(pairs)]
    ids = [number if number % 3 else f"document {number}" for number in range(len(texts))]
    metadata = [{"n": number, "tags": ["a", "b"], "source": f"notes/{number}.md"} for number in range(len(texts))]
    with SearchIndex.create(path, chunk="sentences") as index:
        index.add(texts, ids, metadata)
        index.delete([4, "document 6"])
        index.update_metadata(5, {"title": "changed"})
    return path


@pytest.mark.parametrize(("count", "seed"), [(150, 0), pytest.param(3000, 1, marks=pytest.mark.slow)])
def test_flipped_bits(path, count, seed):
    model = Embedder.load(DEFAULT_MODEL)
    with SearchIndex.open(path, model) as index:
        whole = contents(index, path)
    known = {answer for answers in whole.values() for answer in answers}
    database = path / "index.sqlite"
    original = database.read_bytes()
    generator = random.Random(seed)
    reported = 0
    for _ in range(count):
        damaged = bytearray(original)
        place, bit = generator.randrange(len(original)), generator.randrange(8)
        damaged[place] ^= 1 << bit
        database.write_bytes(damaged)
        try:
            with SearchIndex.open(path, model) as index:
                problems = list(index.verify(embed=False))
                found = contents(index, path)
        except InputError as error:
            problems, found = [str(error)], {}
        assert not any("\n" in line for line in problems)
        reported += bool(problems)
        if found != whole:
            assert problems, f"bit {bit} of byte {place}: {[name for name in whole if found.get(name) != whole[name]]}"
        for name, answers in found.items():
            assert set(answers) <= known | {"error", "[]"}, f"bit {bit} of byte {place}: {name}"
        for left in path.glob("index.sqlite-*"):
            left.unlink()
    database.write_bytes(original)
    # Many bits belong to nothing that is stored; without enough others the test would see no damage.
    assert reported > count // 10


@pytest.mark.parametrize(("count", "seed"), [(24, 0), pytest.param(1000, 1, marks=pytest.mark.slow)])
def test_swapped_pages(path, count, seed):
    """Swap, copy, zero or cut off pages of the database; each command answers as before or raises an InputError."""
    model = Embedder.load(DEFAULT_MODEL)
    with SearchIndex.open(path, model) as index:
        known = {answer for answers in contents(index, path).values() for answer in answers}
    database = path / "index.sqlite"
    original = database.read_bytes()
    pages = len(original) // 4096
    generator = random.Random(seed)
    reported = 0
    for number in range(count):
        damaged = bytearray(original)
        one, other = (slice(4096 * page, 4096 * (page + 1)) for page in generator.sample(range(pages), 2))
        match number % 4:
            case 0:
                damaged[one], damaged[other] = original[other], original[one]
            case 1:
                damaged[one] = original[other]
            case 2:
                damaged[one] = bytes(4096)
            case 3:
                del damaged[one.start :]
        work = path.with_name("damaged")
        shutil.copytree(path, work)
        (work / "index.sqlite").write_bytes(damaged)
        try:
            with SearchIndex.open(work, model) as index:
                reported += bool(index.verify(embed=False))
                for answers in contents(index, work).values():
                    assert set(answers) <= known | {"error", "[]"}, f"trial {number}"
                for change in (
                    lambda: index.add(["a new text"], ["new"]),
                    lambda: index.delete([5]),
                    lambda: index.upsert(["another"], [8]),
                    lambda: index.update_metadata(7, {"title": "changed"}),
                    index.compact,
                    index.topics,
                    index.duplicates,
                    lambda: index.fields(),
                ):
                    with suppress(InputError):
                        change()
        except InputError:
            reported += 1
        shutil.rmtree(work)
    assert reported > count // 2


def test_compaction_keeps_no_damaged_text(path):
    database = path / "index.sqlite"
    content = database.read_bytes()
    place = content.index(SENTENCES[3].encode())
    database.write_bytes(content[:place] + b"X" + content[place + 1 :])
    with SearchIndex.open(path, Embedder.load(DEFAULT_MODEL)) as index:
        with pytest.raises(InputError, match=r"damaged .*verify"):
            index.compact()
        assert any("wrong checksums" in line for line in index.verify(embed=False))
