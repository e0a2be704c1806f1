"""The sentence of a hit that answers the query."""

import time

import pytest

from ctx_embed.index import SearchIndex
from ctx_embed.index.searching.hits import LONG_SENTENCE, highlights, places
from ctx_embed.numpy_model import Embedder
from tests.helpers.cli import Command

PASSAGES = [
    "The museum was founded in 1901. It opens at nine in the morning and closes at six. Tickets cost four pounds.",
    "Bees dance to tell each other where flowers are. A hive has one queen. Honey keeps for thousands of years.",
    "One sentence alone about the price of bread.",
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    with SearchIndex.create(tmp_path_factory.mktemp("highlights") / "index") as made:
        made.add(PASSAGES, ids=["museum", "bees", "bread"])
        yield made


@pytest.fixture(scope="module")
def embedder():
    return Embedder.load()


def highlight(hits, identifier: str) -> str:
    (hit,) = (hit for hit in hits if hit.id == identifier)
    start, stop = hit.highlight
    return hit.text[start:stop]


@pytest.mark.parametrize("mode", ["hybrid", "dense", "words"])
def test_the_sentence_that_answers_is_highlighted(index, mode):
    for query, answer in (
        ("at what hour does it open and close?", "It opens at nine in the morning and closes at six."),
        ("entrance fee in pounds", "Tickets cost four pounds."),
    ):
        assert highlight(index.search(query, mode=mode, highlight=True), "museum") == answer
    if mode == "hybrid":
        # Meaning counts without a common word.
        hits = index.search("insects communicate about blossoms", highlight=True)
        assert highlight(hits, "bees") == "Bees dance to tell each other where flowers are."
        shown = Command("index query").succeeds(index.path, "entrance fee in pounds", "-k", "1", "--highlight")
        assert shown.splitlines()[1].strip() == "Tickets cost four pounds."


def test_several_and_fused_queries_have_highlights(index):
    queries = ["at what hour does it open?", "how long does honey keep?"]
    first, second = index.search(queries, highlight=True)
    assert highlight(first, "museum").startswith("It opens")
    assert highlight(second, "bees").startswith("Honey keeps")
    fused = index.search(queries, fuse=True, highlight=True)
    assert highlight(fused, "museum").startswith("It opens")
    assert highlight(fused, "bees").startswith("Honey keeps")
    assert highlight(fused, "bread") == PASSAGES[2]


def test_vectors_ids_and_searches_without_the_option_have_none(index, embedder):
    for query in ({"query": "honey"}, {"like": "bees", "highlight": True}):
        assert {hit.highlight for hit in index.search(**query)} == {None}
    assert {hit.highlight for hit in index.search(embedder.encode("honey"), highlight=True)} == {None}


def test_words_decide_where_the_model_knows_no_token_of_the_query(embedder):
    query, text = "ঘঙচ", "First sentence here. Then ঘঙচ follows. Last one."
    vectors = embedder.encode([query])
    assert not vectors.any()
    ((start, stop),) = highlights([text], [query], vectors, embedder.encode)
    assert text[start:stop] == "Then ঘঙচ follows."


def test_long_sentences_are_cut_into_lines_and_long_lines_between_words(embedder):
    lines = [f"line {number} of a log without any full stop" for number in range(40)]
    text = "\n".join(lines)
    assert len(text) > LONG_SENTENCE
    assert [text[start:stop] for start, stop in places(text)] == lines
    assert places("") == [(0, 0)]
    text = f"{'and so on ' * 90}the museum opens at nine in the morning {'and so on ' * 90}{'x' * 900}"
    found = [text[start:stop] for start, stop in places(text)]
    assert max(map(len, found)) <= LONG_SENTENCE
    assert "".join("".join(found).split()) == "".join(text.split())
    ((start, stop),) = highlights([text], ["opening hours"], embedder.encode(["opening hours"]), embedder.encode)
    assert "the museum opens at nine" in text[start:stop]


def test_sentences_run_over_lines_but_not_over_items_and_statements():
    sentences = [
        "# A heading of more than forty characters in all",
        "\nThe first sentence of the paragraph runs over\ntwo lines.",
        " The second one does not.",
        "\n- An item that is long enough to be continued\n  on the next line",
        "\n- Another item",
        "\nconnection = open_the_connection_to_the_database();",
        "\nclose(connection)",
        "\n2024-01-01 12:00:00 INFO the request was served",
        "\nand another line",
    ]
    text = "".join(sentences) + "\n"
    assert [text[start:stop] for start, stop in places(text)] == [each.strip() for each in sentences]


def test_a_highlight_takes_less_than_two_milliseconds(embedder):
    texts = [" ".join([*PASSAGES, *PASSAGES[::-1]])] * 10
    vectors = embedder.encode(["when does it open?"])
    taken = []
    for _ in range(7):
        begin = time.process_time()
        highlights(texts, ["when does it open?"], vectors, embedder.encode)
        taken.append((time.process_time() - begin) / len(texts))
    assert min(taken) < 0.002
