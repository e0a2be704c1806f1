import csv
import itertools
import json
import random
import time
from pathlib import Path

import faiss
import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import parquet

from ctx_embed import dedupe, deduplication
from ctx_embed.deduplication import StoredTexts, band_keys, grams, normalized, similarity
from ctx_embed.runtime import Embedder
from ctx_embed.vectors import unit_rows
from tests.helpers.cli import Command
from tests.helpers.errors import error

TEXTS = ["The cat sat on the mat.", "prices rise faster than wages in the north", "the cat sat on the mat"]
TEXTS += ["THE CAT -- sat on the mat!", "Prices rise faster than wages in the nort", "An error in line 12 of the file"]
TEXTS += ["An error in line 13 of the file", "Crème brûlée", "CRÈME BRÛLÉE.", "???", "!!!", "", "a"]
KEPT = [0, 1, 5, 6, 7, 9, 10, 12]
COMMAND = Command("dedupe")
RANDOM = random.Random(0)
WORDS = ["".join(RANDOM.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(9000)]


def lines(path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def deduped(folder, texts, **options) -> list[str]:
    """Return the texts that stay."""
    (folder / "in.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    found = dedupe(folder / "in.txt", folder / "out.txt", **options)
    kept = lines(folder / "out.txt")
    assert (found.rows, found.kept) == (len(list(filter(None, texts))), len(kept))
    assert "groups" not in options or found.groups == len(lines(options["groups"]))
    return kept


def test_the_first_of_near_duplicates_stays_as_it_is(tmp_path):
    kept = deduped(tmp_path, TEXTS, groups=tmp_path / "groups.jsonl")
    assert kept == [TEXTS[row] for row in KEPT]
    groups = [json.loads(line) for line in lines(tmp_path / "groups.jsonl")]
    assert [group["kept"]["row"] for group in groups] == [1, 2, 8]
    assert groups[0]["dropped"] == [
        {"row": 3, "text": "the cat sat on the mat", "similarity": 1.0},
        {"row": 4, "text": "THE CAT -- sat on the mat!", "similarity": 1.0},
    ]
    assert 0.6 <= groups[1]["dropped"][0]["similarity"] < 1
    assert deduped(tmp_path, kept) == kept
    assert TEXTS[4] in deduped(tmp_path, TEXTS, threshold=1)


def test_every_format_keeps_its_rows_and_fields(tmp_path):
    texts = [text for text in TEXTS if text]
    wanted = [texts.index(TEXTS[row]) for row in KEPT]
    rows = [{"n": n, "review": text, "tags": ["x", n]} for n, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows[:6]) + "\n")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[6:]))
    dedupe([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], tmp_path / "out.jsonl", text_field="review")
    assert [json.loads(line) for line in lines(tmp_path / "out.jsonl")] == [rows[place] for place in wanted]

    (tmp_path / "in.json").write_text(json.dumps(rows))
    dedupe(tmp_path / "in.json", tmp_path / "out.json", text_field="review")
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == [rows[place] for place in wanted]

    frame = pandas.DataFrame({"n": range(len(texts)), "text": [f'{text}, "said"\nhe' for text in texts]})
    frame.to_csv(tmp_path / "in.csv.gz", index=False)
    dedupe(tmp_path / "in.csv.gz", tmp_path / "out.csv.gz")
    found = pandas.read_csv(tmp_path / "out.csv.gz")
    assert found.equals(frame.iloc[found.n].reset_index(drop=True))
    assert {0, 2} & {*found.n} == {0}

    (tmp_path / "in.tsv").write_text("text\tn\n" + "".join(f'{text}\t"{n}\n' for n, text in enumerate(texts)))
    dedupe(tmp_path / "in.tsv", tmp_path / "out.tsv")
    assert lines(tmp_path / "out.tsv") == ["text\tn", *(f'{texts[place]}\t"{place}' for place in wanted)]

    table = pyarrow.table({"text": texts, "n": pyarrow.array(range(len(texts)), pyarrow.int16())})
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=5)
    dedupe(tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet").equals(table.take(wanted))
    (tmp_path / "a.tsv").write_text('text\tn\nA ferry was "late".\t1\n')
    (tmp_path / "b.tsv").write_text('text\tn\n"Prices ""rise"".\nAgain."\t2\n')
    for names in ("ab", "ba"):
        dedupe([tmp_path / f"{name}.tsv" for name in names], tmp_path / "out.tsv")
        with (tmp_path / "out.tsv").open(newline="") as file:
            header, *rows = csv.reader(file, delimiter="\t")
        assert header == ["text", "n"]
        assert sorted(rows) == [['A ferry was "late".', "1"], ['Prices "rise".\nAgain.', "2"]]


def test_planted_small_edits_are_found_and_other_texts_stay(tmp_path):
    generator, words = random.Random(0), WORDS[:2000]
    originals = [" ".join(generator.choices(words, k=12)) for _ in range(3000)]

    def edited(text: str) -> str:
        place = generator.randrange(len(text) - 1)
        return text[:place] + text[place + 1] + text[place] + text[place + 2 :]

    mixed = [*originals, *map(edited, originals[:1000])]
    generator.shuffle(mixed)
    kept = deduped(tmp_path, mixed)
    assert 3000 <= len(kept) <= 3010
    assert deduped(tmp_path, mixed) == kept


def test_each_of_many_texts_is_compared_with_the_first_that_is_like_it(tmp_path):
    first = " ".join(WORDS[:72])
    others = [f"{first} {' '.join(WORDS[72 + 28 * number : 100 + 28 * number])}" for number in range(300)]
    sets = [grams(normalized(text)) for text in (first, *others[:2])]
    assert similarity(*sets[:2]) > 0.7
    assert similarity(*sets[1:]) < 0.59
    assert deduped(tmp_path, [first, *others]) == [first]


DIFFERENT = [
    *("x > 5", "x < 5", "it was -5 degrees", "it was 5 degrees", "version 3.10", "version 3.1", "version 310"),
    *("C++", "C#", "C", "up 5%", "up 5", "a + b", "a b", "5 €", "5 $", "a \u2227 b", "a \u2228 b"),
    *("great \U0001f600", "great \U0001f621", "nice \U0001f44b\U0001f3fb", "nice \U0001f44b\U0001f3ff"),
    *("कि", "की", "ma", "má", "mà", "กา", "กี", "abcabcabcabcabc", "abcabcabcabcabcabc"),
]


def test_what_differs_in_a_sign_is_no_copy(tmp_path):
    copies = [copy for text in DIFFERENT for copy in (f"«{text.upper()}», ", text.replace(" ", "  "))]
    assert deduped(tmp_path, [*DIFFERENT, *copies], threshold=1) == DIFFERENT


def test_unrelated_long_texts_are_no_copies(tmp_path):
    numbers = np.random.default_rng(0)
    words = ["".join(numbers.choice(list("aeinorstlmdu"), size)) for size in numbers.integers(2, 8, 4000)]
    weights = 1 / np.arange(1, 4001)
    books = [" ".join(numbers.choice(words, 60_000, p=weights / weights.sum())) for _ in range(4)]
    assert min(map(len, books)) > 250_000
    edited = books[0].replace(f" {words[9]} ", " another ")
    started = time.process_time()
    assert deduped(tmp_path, [*books, edited]) == books
    assert time.process_time() - started < 10


def test_equal_keys_are_as_frequent_as_the_similarity_says():
    left = normalized("the quick brown fox jumps over the lazy dog in the garden")
    right = normalized("the quick brown fox jumped over a lazy dog in the garden")
    share = np.mean([keys[0] == keys[1] for keys in band_keys([left, right, "a"])])
    wanted = similarity(grams(left), grams(right)) ** 5
    assert abs(share - wanted) < 3 * (wanted * (1 - wanted) / 50) ** 0.5


def test_meaning_compares_embeddings_of_the_model_that_ships(tmp_path):
    texts = ["The customer was very happy with the service.", "With the service, the customer was very happy."]
    texts += ["Service began in 1912.", "In 1913 service began.", "A storm destroyed the old harbour."]
    texts += ["Customer 7 was very happy with the service.", "With the service, customer 9 was very happy."]
    assert deduped(tmp_path, texts, threshold=0.95) == texts
    assert deduped(tmp_path, texts, threshold=0.95, meaning=0.9) == [texts[0], *texts[2:]]
    # What is like a text in both ways is as similar as the nearer way says.
    likeness = []
    for least in ({"threshold": 0.4}, {"threshold": 0.4, "meaning": 0.9}, {"threshold": 1, "meaning": 0.9}):
        deduped(tmp_path, ["The film was good.", "The film was very good."], groups=tmp_path / "groups", **least)
        likeness.append(json.loads(lines(tmp_path / "groups")[0])["dropped"][0]["similarity"])
    assert likeness[0] < likeness[1] == likeness[2]


@pytest.mark.parametrize("exact_rows", [10, 10_000])
def test_meaning_finds_each_of_many_copies(tmp_path, monkeypatch, exact_rows):
    monkeypatch.setattr(deduplication, "EXACT_ROWS", exact_rows)
    monkeypatch.setattr(deduplication, "ROWS_AT_ONCE", 64)
    words = ["rain", "wind", "ferry", "letter", "garden", "engine", "river", "market", "school", "bridge", "farm"]
    others = [f"The {one} of the {other} was {third}." for one in words for other in words for third in words[:4]]
    # More copies than the neighbours that are looked for at first, which follow each other in every block.
    copies = [f"The {'very ' * n}late train left the station at night." for n in range(1, 5)] * 3
    marks = itertools.product("@#%&*/", repeat=2)
    copies += [f"The late train {one} left the station at night {other}" for one, other in marks]
    texts = [text for pair in zip(copies, others, strict=False) for text in pair] + others[len(copies) :]
    kept = deduped(tmp_path, texts, threshold=1, meaning=0.97, groups=tmp_path / "groups.jsonl")
    vectors = unit_rows(Embedder.load().encode(texts).astype(np.float64))
    wanted, of_wanted = [], []
    for text, vector in zip(texts, vectors, strict=True):
        if not wanted or max(np.array(of_wanted) @ vector) < 0.97:
            wanted.append(text)
            of_wanted.append(vector)
    assert kept == wanted
    for group in map(json.loads, lines(tmp_path / "groups.jsonl")):
        assert all(member["similarity"] >= 0.97 for member in group["dropped"])


def test_texts_with_different_numbers_are_not_compared_by_meaning(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(faiss, "index_factory", lambda *given: asked.append(given))
    assert len(deduped(tmp_path, [f"the same line about room {number}" for number in range(500)], meaning=0.9)) == 500
    assert not asked


def test_numbers_of_pairs_have_64_bits(tmp_path):
    with (tmp_path / "texts").open("w+b") as file:
        texts = StoredTexts(tmp_path, file, False)
        night = "The very late train left the station at night, and its lamps were lit"
        texts.read([night, f"{night}!", f"{night} again"], [])
        pairs = [*deduplication._near_characters(texts, 0.1), *deduplication._near_embeddings(texts, 0.1, None)]
    assert sum(len(left) for left, _, _ in pairs) == 2
    assert {rows.dtype for pair in pairs for rows in pair[:2]} == {np.dtype(np.int64)}


@pytest.mark.parametrize("count", [1, 4])
def test_a_text_without_known_tokens_is_no_duplicate_by_meaning(tmp_path, count):
    foreign = ["Привет, как дела", "こんにちは世界です", "مرحبا كيف حالك", "שלום מה שלומך"]
    texts = [*foreign[:count], "Hello how are you"]
    (tmp_path / "in.txt").write_text("\n".join(texts), encoding="utf-8")
    result = COMMAND.run(tmp_path / "in.txt", "-o", tmp_path / "out.txt", "--meaning", "0.95")
    assert lines(tmp_path / "out.txt") == texts
    named = repr(texts[0]) if count == 1 else f"{', '.join(map(repr, texts[:3]))}, ..."
    of = "1 text" if count == 1 else "4 texts"
    said = f"Warning: the model knows too few words of {of} ({named}), so only their characters were compared\n"
    assert (result.exit_code, result.stderr) == (0, said)


def test_texts_are_compared_as_they_are_read(tmp_path):
    kept = ["The o\ufb03ce of photo\xadvoltaic panels", None, "The office of photo panels"]
    kept += ["\uff26\uff35\uff2c\uff2c\u3000width", None, "form\ffeed", None, "zero\u200bwidth", "zero width", None]
    plain = ["The office of photovoltaic panels", "Full width", "form feed", "zerowidth"]
    found = deduped(tmp_path, [text or plain.pop(0) for text in kept], threshold=1)
    assert found == [text for text in kept if text]


def test_mistakes_are_one_line_and_write_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("a text\n")
    Path("in.jsonl").write_text('{"text": "a"}\n{"other": "b"}\n')
    Path("empty.txt").write_text("\n")
    Path("in.json").write_text('[{"text": "a"}]')
    pandas.DataFrame({"text": ["a"]}).to_excel("in.xlsx")
    before = sorted(tmp_path.iterdir())
    format_of = "stay in the format of the input, so its name must"
    for source, output, options, message in [
        ("in.txt", "out.txt", {"threshold": 0}, "threshold must be above 0 and at most 1, got 0"),
        ("in.txt", "out.txt", {"meaning": 2}, "meaning must be above 0 and at most 1, got 2"),
        ("in.txt", "in.txt", {}, "it is the input"),
        ("in.txt", "out.jsonl", {}, f"the rows {format_of} be that of a text file"),
        ("in.jsonl", "out.jsonl", {}, "line 2: no field 'text'"),
        ("missing.txt", "out.txt", {}, "no such file"),
        ("empty.txt", "out.txt", {}, "no texts"),
        ("in.txt", "out.txt", {"groups": "out.txt"}, "named both for the rows and for their groups"),
        *(("in.json", name, {}, f"{format_of} end in .json") for name in ("out.jsonl", "out.ndjson.gz", "out.txt")),
        (["in.txt", "in.jsonl"], "out.txt", {}, "all files must have one format"),
        ("in.xlsx", "out.xlsx", {}, "dedupe writes the format that it reads, but no spreadsheets; save it as CSV"),
    ]:
        assert message in error(dedupe, source, output, **options)
    assert sorted(tmp_path.iterdir()) == before


def test_the_command_reads_and_writes_pipes(tmp_path):
    result = COMMAND.run("-", "-o", "-", input="A b c!\na b c\nother words\n")
    said = "-: 2 of 3 rows kept, 1 dropped, near-duplicates of 1 row\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, "A b c!\nother words\n", said)
    rows = '{"text": "A b c!"}\n{"text": "a b c", "n": 1}\n'
    COMMAND.succeeds("-", "-o", tmp_path / "out.jsonl", input=rows)
    assert lines(tmp_path / "out.jsonl") == ['{"text": "A b c!"}']
    assert "--model needs --meaning" in COMMAND.fails("-", "-o", "-", "--model", "x", input=rows, code=2)
