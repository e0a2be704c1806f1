"""Damage anywhere in the database changes no answer, or `verify` reports it; no answer has other contents."""

import itertools
import json
import random
from contextlib import suppress

import pytest

from ctx_embed import InputError, SearchIndex
from ctx_embed.numpy_model import Embedder
from tests.conftest import SENTENCES
from tests.helpers.errors import error

QUERIES = ("a question about the weather", "prices", '"the film"')
PAGE = 4096


def contents(index, path) -> dict[str, list]:
    """Return what each way of reading answers; an error is an answer, too."""
    found: dict[str, list] = {}

    def read(name, work) -> None:
        try:
            found[name] = [json.dumps(answer, sort_keys=True) for answer in work()]
        except InputError:
            found[name] = ["error"]

    read("documents", lambda: [fields(document) for document in index.documents()])
    for identifier in (1, 2, 5, "document 0", "document 3"):
        read(f"get {identifier}", lambda wanted=identifier: [fields(index.get(wanted))])
    for mode, query in itertools.product(("dense", "words", "hybrid"), QUERIES):
        read(f"{mode} {query}", lambda query=query, mode=mode: hits(index, query, mode))
    read("export", lambda: exported(index, path.with_name("out")))
    return found


def fields(document) -> list:
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
    pairs = itertools.permutations(SENTENCES[:6], 2)
    texts = [f"{first} {second} Number {number}." for number, (first, second) in enumerate(pairs)]
    ids = [number if number % 3 else f"document {number}" for number in range(len(texts))]
    metadata = [{"n": number, "tags": ["a", "b"], "source": f"notes/{number}.md"} for number in range(len(texts))]
    with SearchIndex.create(path, chunk="sentences") as index:
        index.add(texts, ids, metadata)
        index.delete([4, "document 6"])
        index.update_metadata(5, {"title": "changed"})
    return path


def flipped(content: bytes, generator: random.Random, _: int) -> bytearray:
    """Return the content with another bit."""
    damaged = bytearray(content)
    damaged[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    return damaged


def swapped(content: bytes, generator: random.Random, number: int) -> bytearray:
    """Return the content with two pages swapped, one copied or zero, or the rest cut off."""
    damaged = bytearray(content)
    places = generator.sample(range(len(content) // PAGE), 2)
    one, other = (slice(PAGE * place, PAGE * (place + 1)) for place in places)
    match number % 4:
        case 0:
            damaged[one], damaged[other] = content[other], content[one]
        case 1:
            damaged[one] = content[other]
        case 2:
            damaged[one] = bytes(PAGE)
        case 3:
            del damaged[one.start :]
    return damaged


def change(index) -> None:
    """Change a damaged index in every way: it ends well or with an InputError."""
    for work in (
        lambda: index.add(["a new text"], ["new"]),
        lambda: index.delete([5]),
        lambda: index.upsert(["another"], [8]),
        lambda: index.update_metadata(7, {"title": "changed"}),
        index.compact,
        index.topics,
        index.duplicates,
        index.fields,
    ):
        with suppress(InputError):
            work()


@pytest.mark.parametrize(
    ("damage", "count", "seed"),
    [
        (flipped, 150, 0),
        (swapped, 24, 0),
        pytest.param(flipped, 3000, 1, marks=pytest.mark.slow),
        pytest.param(swapped, 1000, 1, marks=pytest.mark.slow),
    ],
)
def test_damage_is_reported_or_changes_nothing(path, damage, count, seed):
    model = Embedder.load()
    with SearchIndex.open(path, model) as index:
        whole = contents(index, path)
    known = {answer for answers in whole.values() for answer in answers} | {"error", "[]"}
    database = path / "index.sqlite"
    original = database.read_bytes()
    generator = random.Random(seed)
    reported = 0
    for number in range(count):
        for file in path.iterdir():
            file.unlink()
        database.write_bytes(damage(original, generator, number))
        found = {}
        try:
            with SearchIndex.open(path, model) as index:
                problems = list(index.verify(embed=False))
                found = contents(index, path)
                if damage is swapped:
                    change(index)
        except InputError as caught:
            problems = [str(caught)]
        assert not any("\n" in line for line in problems)
        reported += bool(problems)
        if found != whole:
            assert problems, f"trial {number}: {[name for name in whole if found.get(name) != whole[name]]}"
        for name, answers in found.items():
            assert set(answers) <= known, f"trial {number}: {name}"
    # Many bits belong to nothing that is stored; without enough others the test would see no damage.
    assert reported > count // (10 if damage is flipped else 2)


def test_compaction_keeps_no_damaged_text(path):
    database = path / "index.sqlite"
    content = database.read_bytes()
    place = content.index(SENTENCES[3].encode())
    database.write_bytes(content[:place] + b"X" + content[place + 1 :])
    with SearchIndex.open(path, Embedder.load()) as index:
        said = error(index.compact)
        assert "damaged " in said
        assert "verify" in said
        assert any("wrong checksums" in line for line in index.verify(embed=False))
