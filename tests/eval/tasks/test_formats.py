import re

import pytest

from ctx_embed.eval.tasks.catalogue import READERS
from tests.helpers.errors import error


def written(tmp_path, content: str | bytes, name: str = "data.txt"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    "1\tA man runs\tA man sits\t3.2\tNEUTRAL\n2\tIt rains\tRain falls\t4.7\tENTAILMENT\n"
)


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
        ("SICK entailment", SICK, [("NEUTRAL", "A man runs", "A man sits"), ("ENTAILMENT", "It rains", "Rain falls")]),
        ("SICK relatedness", SICK, [("3.2", "A man runs", "A man sits"), ("4.7", "It rains", "Rain falls")]),
        ("TREC", b"DESC:manner How ?\nNUM:date When was caf\xe9 ?\n", [("DESC", "How ?"), ("NUM", "When was café ?")]),
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
        # With and without a header.
        ("judgements", "query-id\tcorpus-id\tscore\n1\t7\t2\n1\t8\t-1\n", [("1", "7", "2"), ("1", "8", "-1")]),
        ("judgements", "1\t2\t1\n1\t3\t0\n", [("1", "2", "1"), ("1", "3", "0")]),
    ],
)
def test_rows(form, content, rows, tmp_path):
    assert READERS[form](written(tmp_path, content)) == rows


def test_pairs_without_a_score_are_left_out(tmp_path):
    path, read = written(tmp_path, "a\tb\nc\td\ne\tf\n", "STS.input.headlines.txt"), READERS["STS input"]
    assert "STS.gs.headlines.txt is missing; it must hold the scores of " in error(read, path)
    for scores, message in (
        ("1.5\n\n", r"headlines\.txt must hold a score for each of 3 pairs in .*, got 2$"),
        ("1.5\n\nx\n", r"STS\.gs\.headlines\.txt, line 3: the score must be a number, got 'x'$"),
    ):
        written(tmp_path, scores, "STS.gs.headlines.txt")
        assert re.search(message, error(read, path))
    written(tmp_path, "1.5\n\n4\n", "STS.gs.headlines.txt")
    assert read(path) == [("1.5", "a", "b"), ("4", "e", "f")]


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("label, text, text", "1\ta\n", "line 1: must be label<TAB>text<TAB>text, got '1\\ta'"),
        ("SST fine", "1 a\nalone\n", "line 2: must be label text, got 'alone'"),
        ("SICK relatedness", "head\n1\ta\tb\tx\tNEUTRAL\n", "line 2: must be pair_ID"),
        ("MRPC", "head\n", "must have lines of Quality<TAB>"),
        ("documents", "[1]\n", "line 1: must be an object with _id and text, got '[1]'"),
        ("documents", '{"_id": "7", "text": null}\n', "text must be a string, got null"),
        ("score, text, text", "1.0\ta\tb\nnan\ta\tb", "line 2: must be score<TAB>text<TAB>text, got 'nan\\ta\\tb'"),
        ("score, text, text", "1.0\ta\tb\tc", "line 1: must be score<TAB>text<TAB>text, got "),
        ("documents", '{"_id": 1, "text": "a"}\n', '_id must be a string, got 1; write "1"'),
        ("documents", "{\n", "line 1: not JSON ("),
        ("judgements", "q\td\ts\n1\t2\t0.5\n", "the score of '1' and '2' must be an integer, got '0.5'"),
        ("TREC", "DESC How ?\n", "line 1: must be COARSE:fine question, got 'DESC How ?'"),
    ],
)
def test_broken_files(form, content, message, tmp_path):
    said = error(READERS[form], written(tmp_path, content))
    assert "data.txt" in said
    assert message in said
