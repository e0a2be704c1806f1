from __future__ import annotations

import re

import pytest

from ctx_embed.errors import InputError
from ctx_embed.eval.tasks.formats import READERS


def written(tmp_path, content: str | bytes, name: str = "data.txt"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("form", "content", "rows"),
    [
        ("label, text", "1\tgood\n\n0\t\n", [("1", "good"), ("0", "")]),
        ("label, text, text", "1\ta\tb\n", [("1", "a", "b")]),
        ("label, stars, text", "1\t9\tso good\n", [("1", "so good")]),
        ("score, text, text", "2.5\ta b\tc\n", [("2.5", "a b", "c")]),
        ("negative", "dull .\n\nlong .\n", [("0", "dull ."), ("0", "long .")]),
        ("positive", b"caf\xe9 noir\n", [("1", "café noir")]),
        ("SST fine", "0 dull and long\n1 fine\n", [("0", "dull and long"), ("1", "fine")]),
        ("SST binary", "a joy\t1\na bore\t0\n", [("1", "a joy"), ("0", "a bore")]),
        (
            "TREC",
            b"DESC:manner How did it begin ?\nNUM:date When was caf\xe9 coined ?\n",
            [("DESC", "How did it begin ?"), ("NUM", "When was café coined ?")],
        ),
        (
            "MRPC",
            '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said "no .\tHe said no .\n',
            [("1", 'He said "no .', "He said no .")],
        ),
        (
            "STS benchmark",
            "main-news\tMSRpar\t2012test\t0001\t5.000\ta\tb\nmain\tx\t2012\t2\t0.5\tc\td\tlicence\tx\n",
            [("5.000", "a", "b"), ("0.5", "c", "d")],
        ),
        (
            "documents",
            '{"_id": "7", "title": "On wings", "text": "They fly."}\n{"_id": "8", "text": "Alone."}\n',
            [("7", "On wings They fly."), ("8", "Alone.")],
        ),
        (
            "judgements",
            "query-id\tcorpus-id\tscore\n1\t7\t2\n1\t8\t-1\n",
            [("1", "7", "2"), ("1", "8", "-1")],
        ),
    ],
)
def test_rows(form, content, rows, tmp_path):
    assert READERS[form](written(tmp_path, content)) == rows


SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    "1\tA man runs\tA man sits\t3.2\tNEUTRAL\n2\tIt rains\tRain falls\t4.7\tENTAILMENT\n"
)


def test_sick_gives_both_tasks(tmp_path):
    path = written(tmp_path, SICK)
    assert READERS["SICK entailment"](path) == [
        ("NEUTRAL", "A man runs", "A man sits"),
        ("ENTAILMENT", "It rains", "Rain falls"),
    ]
    assert READERS["SICK relatedness"](path) == [("3.2", "A man runs", "A man sits"), ("4.7", "It rains", "Rain falls")]


def test_pairs_without_a_score_are_left_out(tmp_path):
    path = written(tmp_path, "a\tb\nc\td\ne\tf\n", "STS.input.headlines.txt")
    with pytest.raises(InputError, match=r"STS\.gs\.headlines\.txt is missing; it must hold the scores of "):
        READERS["STS input"](path)
    scores = written(tmp_path, "1.5\n\n4\n", "STS.gs.headlines.txt")
    assert READERS["STS input"](path) == [("1.5", "a", "b"), ("4", "e", "f")]
    scores.write_text("1.5\n\n")
    with pytest.raises(InputError, match=r"headlines\.txt must hold a score for each of 3 pairs in .*, got 2$"):
        READERS["STS input"](path)
    scores.write_text("1.5\n\nx\n")
    with pytest.raises(InputError, match=r"STS\.gs\.headlines\.txt, line 3: the score must be a number, got 'x'$"):
        READERS["STS input"](path)


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("label, text, text", "1\ta\n", "line 1: must be label<TAB>text<TAB>text, got '1\\ta'"),
        ("SST fine", "1 a\nalone\n", "line 2: must be label text, got 'alone'"),
        ("MRPC", "head\n1\t2\t3\ta\n", "line 2: must be Quality<TAB>#1 ID"),
        ("SICK relatedness", "head\n1\ta\tb\tx\tNEUTRAL\n", "line 2: must be pair_ID"),
        ("MRPC", "head\n", "must have lines of Quality<TAB>"),
        ("documents", "[1]\n", "line 1: must be an object with _id and text, got '[1]'"),
        ("documents", '{"_id": "7", "text": null}\n', "text must be a string, got null"),
        *(
            ("score, text, text", f"1.0\ta\tb\n{line}", f"line 2: must be score<TAB>text<TAB>text, got {line!r}")
            for line in ("1.0\tone text", "good\ta\tb", "nan\ta\tb", "1.0\ta\tb\tc")
        ),
        ("documents", '{"_id": 1, "text": "a"}\n', '_id must be a string, got 1; write "1"'),
        ("documents", "{\n", "line 1: not JSON ("),
        ("judgements", "q\td\ts\n1\t2\t0.5\n", "the score of '1' and '2' must be an integer, got '0.5'"),
        ("judgements", "q\td\ts\n", "must have lines of query-id<TAB>corpus-id<TAB>score, got none"),
        ("judgements", "1 0 2 1\n", "line 1: must be query-id<TAB>corpus-id<TAB>score, got '1 0 2 1'"),
    ],
)
def test_broken_files(form, content, message, tmp_path):
    with pytest.raises(InputError, match=f"data.txt.*{re.escape(message)}"):
        READERS[form](written(tmp_path, content))


def test_judgements_without_a_header_are_all_read(tmp_path):
    rows = [("1", "2", "1"), ("1", "3", "0")]
    for head in ("", "query-id\tcorpus-id\tscore\n"):
        assert READERS["judgements"](written(tmp_path, head + "1\t2\t1\n1\t3\t0\n")) == rows


def test_a_label_of_trec_without_a_colon(tmp_path):
    with pytest.raises(InputError, match=r"line 1: must be COARSE:fine question, got 'DESC How \?'$"):
        READERS["TREC"](written(tmp_path, "DESC How ?\n"))
