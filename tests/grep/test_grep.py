"""Search without an index, with the shipped model."""

import gzip
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import example, given, strategies as st

from ctx_embed.grep import PIECE_BYTES, Search, Sources, Text, WordCounts, grep, pieces
from ctx_embed.index import SearchIndex
from ctx_embed.index.build import build_index
from ctx_embed.reading.decoding import Extracted
from tests.helpers.errors import error

PASSWORDS = "Users' passwords are stored as salted hashes."
BREAD = "Knead the dough for ten minutes, then let it rise."
TRAINS = "The last train to the coast leaves at midnight."


@pytest.fixture
def tree(tmp_path) -> Path:
    """A folder with files that are searched and others that are not."""
    (tmp_path / "tree" / "docs").mkdir(parents=True)
    for name, content in (
        ("docs/security.md", f"# Security\n\nWhat we do.\n\n{PASSWORDS}\n"),
        *(("docs/baking.txt", f"{BREAD}\n"), ("trains.py", f'"""{TRAINS}"""\n'), (".gitignore", "*.log\n")),
        *(("secret.log", PASSWORDS), (".hidden", PASSWORDS), ("binary.txt", f"\0\1\2{PASSWORDS}")),
    ):
        (tmp_path / "tree" / name).write_text(content)
    return tmp_path / "tree"


def names(*arguments, **options) -> set[str]:
    return {Path(hit.id).name for hit in grep(*arguments, min_relevance=0, **options)}


def test_a_sheet_without_the_text_is_named(tmp_path):
    with pandas.ExcelWriter(tmp_path / "a.xlsx") as book:
        pandas.DataFrame({"name": ["Ann"]}).to_excel(book, sheet_name="Crew", index=False)
        pandas.DataFrame({"text": [TRAINS]}).to_excel(book, sheet_name="Log", index=False)
    sources = Sources([str(tmp_path)])
    assert [text.extracted.text for text in sources.texts()] == [TRAINS]
    assert [*sources.report.notes.values()] == [
        "left out the sheet 'Crew' (no field 'text' (fields: 'name'); name the right one with --field)"
    ]


def test_the_place_of_the_answer(tree):
    hit, *_ = grep("how do you keep a user's password safe?", tree, min_relevance=0)
    assert (hit.id, hit.line, hit.nearest_line) == (str(tree / "docs" / "security.md"), 1, 5)
    assert hit.text[slice(*hit.highlight)] == PASSWORDS
    # Ignored, hidden and binary files are read only if they are named.
    assert names("passwords", tree) == {"security.md", "baking.txt", "trains.py"}
    assert names("passwords", tree / "secret.log") == {"secret.log"}
    assert names("passwords", tree, include=["docs/*"], exclude=["*.md"]) == {"baking.txt"}
    best, *_ = grep("passwords", tree, min_relevance=0)
    assert grep("passwords", tree, threshold=best.score + 0.01) == []
    assert names("passwords", tree, threshold=best.score - 0.01) == {"security.md"}
    assert grep("which river flows through Vienna?", tree) == []
    assert names("which river flows through Vienna?", tree)
    # Words and quoted phrases must occur.
    assert names("kneading minutes", tree, mode="words") == {"baking.txt"}
    assert grep("xylophone", tree, mode="words") == []
    for mode in ("hybrid", "words"):
        assert names('train "salted hashes"', tree, mode=mode) == {"security.md"}
        assert names('train "salted"', tree, mode=mode) == {"security.md"}
    assert names('"hashes salted"', tree) == set()


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    """A copy of some pages of docs, and an index of them."""
    folder = tmp_path_factory.mktemp("grep") / "docs"
    folder.mkdir()
    for page in sorted((Path(__file__).parents[2] / "docs").glob("*.md"))[::3]:
        shutil.copy(page, folder)
    build_index([str(folder)], folder.with_suffix(".index"), chunk="passages")
    with SearchIndex.open(folder.with_suffix(".index")) as index:
        yield folder, index


@pytest.mark.parametrize("mode", ["hybrid", "dense", "words"])
def test_hits_are_those_of_an_index(docs, mode):
    folder, index = docs
    for question in ("train on labelled data", "which files of a folder are left out", "near-duplicate rows", "memory"):
        expected = index.search(question, k=5, mode=mode)
        found = grep(question, folder, k=5, mode=mode, min_relevance=0)
        places = [(Path(hit.id).relative_to(folder).as_posix(), hit.start) for hit in found]
        assert places[0] in [(hit.id, hit.start) for hit in expected[:2]]
        if mode == "dense":
            assert [hit.text for hit in found] == [hit.text for hit in expected]
            np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in expected], atol=1e-5)
            # An index also knows how near its own passages lie to words of others; grep takes what is usual.
            relevance = [hit.relevance for hit in expected]
            np.testing.assert_allclose([hit.relevance for hit in found], relevance, atol=0.2)


def test_words_of_a_title_are_found(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    parts = ["The captain looked at the grey water and said nothing for an hour. " * 30]
    parts += ["Anna mended the net on the quay while gulls shouted above her. " * 30]
    parts += ["Bread was dear that winter, and the soup was thin. " * 30]
    titles = {
        "Lighthouse keepers of Brittany": "lighthouse keepers",
        "Beekeepers of Wales": "the beekeeper of Wales",
    }
    for place, title in enumerate(titles):
        body = "".join(f"<h2>Chapter</h2><p>{part}</p>" for part in parts[place:])
        (folder / f"{place}.html").write_text(f"<html><head><title>{title}</title></head><body>{body}</body></html>")
        plain = "".join(f"## Chapter\n\n{part}\n\n" for part in parts[place:])
        (folder / f"{place}.md").write_text(f"---\ntitle: {title}\n---\n\n{plain}")
    build_index([str(folder)], folder.with_suffix(".index"), chunk="passages")
    with SearchIndex.open(folder.with_suffix(".index")) as index:
        for place, query in enumerate(titles.values()):
            own = {f"{place}.html", f"{place}.md"}
            assert names(query, folder, k=4) >= own
            hits = grep(query, folder, k=20)
            assert {Path(hit.id).name for hit in hits} == own
            # Passages that an index finds by the meaning of their title are hits, though they have none of its words.
            found = {(hit.id, hit.start) for hit in index.search(query, k=20) if hit.id in own and hit.relevance > 0.4}
            assert found <= {(Path(hit.id).name, hit.start) for hit in hits}
            assert len(found) >= 4


def test_files_are_named_once_and_lines_around_a_hit_are_shown(tmp_path):
    parts = "".join(f"## {n}\n\n{f'Number {n} is about nothing. ' * 40}\n\n" for n in range(5))
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"{parts}{PASSWORDS}\n\n{'Another line.' * 50}\n\n{PASSWORDS}\n")
    assert len({hit.id for hit in grep("passwords", tmp_path, k=2, files=True)}) == 2
    path = tmp_path / "a.txt"
    path.write_text(f"{parts}{PASSWORDS}\n\n" + "Another line.\n" * 50)
    lines = path.read_text().split("\n")
    hit, *_ = grep("passwords", path, k=1, before=3, after=2, min_relevance=0)
    text = hit.before + hit.text + hit.after
    first = hit.line - hit.before.count("\n")
    assert text.split("\n") == lines[first - 1 : first + text.count("\n")]
    assert hit.before.count("\n") == 3


def test_a_huge_file_has_the_lines_of_the_file(tmp_path):
    path = tmp_path / "app.log"
    lines = [f"2024-01-01 {number} INFO request {number * 7919 % 1000} was served\n" for number in range(30_000)]
    lines.insert(24_111, "the disk of the database server is full\n")
    path.write_text("".join(lines))
    assert len("".join(lines[:24_111])) > PIECE_BYTES
    hit, *_ = grep("is the disk of the database full?", path, min_relevance=0)
    assert hit.nearest_line == 24_112
    assert hit.text[slice(*hit.highlight)] == "the disk of the database server is full"
    assert path.read_text()[hit.start :].startswith(hit.text)


def test_a_large_notebook_is_read_by_its_cells_and_records_have_their_lines(tmp_path):
    cells = [{"cell_type": "code", "source": "x = 1\n" * (PIECE_BYTES // 6)}, {"cell_type": "raw", "source": PASSWORDS}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    hit, *_ = grep("passwords", tmp_path / "a.ipynb")
    assert hit.text.split("\n")[-1] == PASSWORDS
    rows = [{"text": "\n".join([text, "and more"]), "year": 2000} for text in (BREAD, TRAINS, PASSWORDS)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    hit, *_ = grep("passwords", tmp_path / "a.jsonl")
    assert (hit.line, hit.nearest_line, hit.text) == (3, 3, f"{PASSWORDS}\nand more")
    (tmp_path / "mail.csv").write_text("id;message\n1;The ferry was late again.\n2;Prices rose.\n")
    for query, options in (("ferry", {}), ("prices", {"text_field": "message", "title_field": "id"})):
        (hit, *_) = grep(query, tmp_path / "mail.csv", mode="words", **options)
        assert (hit.line, query in hit.text.lower()) == (2 if query == "ferry" else 3, True)


def test_gzip_and_other_encodings(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(f"{PASSWORDS}\r\n{BREAD}\r\n".encode()))
    (tmp_path / "b.txt").write_bytes("Die Schl\u00fcssel\n".encode("utf-16"))
    (tmp_path / "c.txt").write_bytes("the caf\u00e9 is closed on Sundays\n".encode("cp1252"))
    assert [hit.nearest_line for hit in grep("passwords", tmp_path, k=1)] == [1]
    assert [hit.text for hit in grep("cafe", tmp_path, mode="words")] == ["the caf\u00e9 is closed on Sundays"]
    assert [hit.text for hit in grep("schlussel", tmp_path, mode="words")] == ["Die Schl\u00fcssel"]
    # A file that cannot be read is reported.
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(BREAD.encode() * 1000)[:-20])
    sources = Sources([str(tmp_path)])
    assert f"{PASSWORDS}\n{BREAD}\n" in [text.extracted.text for text in sources.texts()]
    assert "d.txt.gz (broken gzip" in sources.report.left_out


PARTS = st.sampled_from(["word ", "caf\u00e9 ", "\n", "\n\n", "\r\n", "\u65e5\u672c", "x" * 30])
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"])


@given(st.lists(PARTS, min_size=20, max_size=60), ENCODINGS, st.integers(16, 300))
# The last piece is the end of a character.
@example(["word "] * 24 + ["café ", "\n\n", "\n\n", "日本"], "utf-8-sig", 16)
def test_pieces_are_the_text_with_its_places(parts, encoding, size):
    text = "".join(["start ", *parts])
    stream = io.BufferedReader(io.BytesIO(text.encode(encoding)))
    expected, read = text.replace("\r\n", "\n"), ""
    for piece, start, line in pieces(stream, "utf-8" if encoding == "utf-8" else None, size):
        assert (start, line) == (len(read), 1 + read.count("\n"))
        read += piece
    assert read == expected


def test_memory_holds_a_bounded_number_of_passages(monkeypatch):
    monkeypatch.setattr("ctx_embed.grep.BATCH_CHARACTERS", 1 << 16)
    search = Search("the password of a user", k=1)
    texts = [Text(f"{n}.txt", Extracted(f"The password of user {n} is {n * 7919}.", line=1)) for n in range(6000)]
    for _ in search.read(texts):
        assert len(search._nearest) <= 100
        assert len(search._worded) <= 2400
    assert len(search.hits()) == 1


def test_the_scores_by_words_are_bm25():
    texts = ["the cat sat", "a cat and a cat", "dogs only here", "birds", "fish", "connected things"]
    words = WordCounts("cats connection")
    rows, counts = words.count(texts)
    assert (rows, counts.tolist()) == ([0, 1, 5], [[1, 0], [2, 0], [0, 1]])
    scores = words.scores(counts, [len(texts[row]) for row in rows])
    average = sum(map(len, texts)) / 6
    idf = np.log((6 - 2 + 0.5) / (2 + 0.5))
    assert scores[1] == pytest.approx(idf * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 15 / average)))
    assert scores[2] > scores[1] > scores[0]


def test_mistakes(tree):
    for arguments, said in (
        ({"paths": "nowhere"}, "nowhere: no such file or folder"),
        ({"paths": []}, "there must be at least one file or folder to search in, got none"),
        ({"question": " ?! "}, "the question must have a word, got ' ?! '"),
        ({"question": 3}, "the question must be a string, got an int"),
        ({"mode": "wrds"}, "did you mean 'words'"),
        ({"include": [""]}, "must be globs such as"),
        ({"encoding": "utf-9"}, "unknown encoding 'utf-9'"),
        ({"model": "nowhere/at/all"}, "nowhere/at/all"),
    ):
        assert said in error(grep, **{"question": "passwords", "paths": tree, **arguments})
