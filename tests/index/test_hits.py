"""What a hit says: its relevance, which is never stale, and the sentence that answers the query."""

import math
import warnings
from functools import partial

import numpy as np
import pytest

from ctx_embed import SearchIndex
from ctx_embed.index import search as searching
from ctx_embed.index.hits import (
    BASE,
    DEFAULT_RELEVANCE,
    DEVIATIONS,
    LONG_SENTENCE,
    PASSAGES,
    WORDS,
    counted,
    highlights,
    places,
    relevance,
    unrelated_cosines,
    word_shares,
)
from ctx_embed.model import Model
from tests.helpers.cli import Command

TEXTS = [
    "The printer XJ-4471 jams when the paper is damp.",
    "Prices rise faster than wages, and savings lose their value.",
    "Remove the cover and clean the rollers with a dry cloth.",
    "The cat sat on the mat and purred.",
]


@pytest.fixture
def index(tmp_path, embedder):
    with SearchIndex.create(tmp_path / "index", embedder) as index:
        index.add(TEXTS)
        yield index


def test_relevance_and_shares_of_words_by_hand():
    unrelated = (0.1, 0.05)
    highest = PASSAGES * math.sqrt(2 * math.log(100))
    for cosine, share in ((0.1, 0.0), (0.35, 0.5), (0.2, 1.0)):
        height = DEVIATIONS * (cosine - 0.1) / 0.05 + WORDS * share + BASE - highest
        assert relevance(unrelated, cosine, share, 97) == pytest.approx(math.exp(-math.exp(-height)))
    assert relevance(unrelated, 1e9, 0.0, 1) == 1
    assert relevance(unrelated, -1e9, 1.0, 1) == 0
    for query, text, share in (
        ("What jams the printers?", "the PRINTER jammed", 1.0),
        ("What jams the printers?", "a printer", 0.5),
        ("art", "part of an article", 0.0),
        ("art", "an art, the arts", 1.0),
        ("max_value", "the value", 0.5),
        ("who are they", "they are", 2 / 3),
        ("?!", "anything", 0.0),
        ("été", "L'ÉTÉ dernier", 1.0),
    ):
        assert word_shares(query, [text, ""]) == pytest.approx([share, 0.0])


def test_unrelated_questions_of_a_model(embedder):
    vectors = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # Random directions have the mean cosine 0 and the deviation 1 / sqrt(dimension).
    assert unrelated_cosines(lambda texts: vectors[: len(texts)]) == pytest.approx((0, 0.05), abs=0.002)
    assert 0 < unrelated_cosines(embedder.encode_query)[0] < 0.2
    # The same questions move with any scale of cosines, so does the relevance of a cosine.
    assert unrelated_cosines(lambda texts: np.zeros((len(texts), 4))) is None
    assert unrelated_cosines(lambda texts: np.ones((len(texts), 4), np.float32) / 2) is None


def test_an_answer_is_relevant_and_noise_vectors_and_unknown_tokens_are_not(index, embedder, tmp_path):
    for query, place in [("inflation", 1), ("why does my printer jam?", 0), ("XJ-4471", 0), ("how to clean it", 2)]:
        hits = index.search(query, 4)
        assert hits[0].text == TEXTS[place]
        assert hits[0].relevance > DEFAULT_RELEVANCE
        # So are pages of relevant hits.
        relevant = [hit for hit in hits if hit.relevance >= 0.5]
        pages = [index.search(query, 1, offset=place, min_relevance=0.5) for place in range(4)]
        assert index.search(query, 4, min_relevance=0.5) == [hit for page in pages for hit in page] == relevant
    for mode in ("dense", "hybrid", "words"):
        none = index.search("Who was the first king of Denmark?", min_relevance=DEFAULT_RELEVANCE, mode=mode)
        assert (none, none.answered) == ([], None if mode == "words" else False)
        # What matches no filter says nothing of the question.
        nowhere = index.search("inflation", min_relevance=DEFAULT_RELEVANCE, mode=mode, where="not (no is null)")
        assert (nowhere, nowhere.answered) == ([], None)
        # What is left out above the bar may be an answer.
        for options in ({"k": 4}, {"k": 1, "offset": 3}, {"min_relevance": 1.0}):
            found = index.search("why does my printer jam?", mode=mode, **options)
            assert found.answered is (None if mode == "words" else True)
    # However few are asked for, the best ten say whether a query is answered.
    texts = [f"{number} tickets for the train" for number in range(12)] + ["The price of tickets rose."]
    with SearchIndex.create(tmp_path / "tickets", embedder) as tickets:
        tickets.add([*texts, *TEXTS])
        for query in ("ticket price", "price", "the train of the king", "inflation"):
            found = [tickets.search(query, k) for k in (1, 2, 5, 10)]
            # So do they if they are not hits, being less relevant than asked for.
            found += [tickets.search(query, min_relevance=least) for least in (0.1, 0.5, 0.8, 0.85, 0.99, 1.0)]
            assert len({hits.answered for hits in found}) == 1
    for blank in ("", " \t", "\xad", '""', "- ?"):
        assert index.search(blank, 3) == []
    # Fused queries share their relevance.
    queries = ["inflation", "savings and wages"]
    best = index.search(queries, 1, fuse=True)[0]
    assert best.relevance >= max(hits[0].relevance for hits in index.search(queries, 1))
    (hit,) = index.search(embedder.encode_query(["inflation"])[0], 1)
    assert (hit.relevance, "relevance" in hit.as_dict()) == (None, False)
    liked = index.search(like=0, k=1)
    assert (liked[0].relevance, liked.answered) == (None, None)
    index.add(["ᚠᚢᚦ ᚨᚱᚲ"])
    (hit,) = index.search("ᚠᚢᚦ", min_relevance=1)
    assert (hit.relevance, hit.text) == (None, "ᚠᚢᚦ ᚨᚱᚲ")


def test_an_index_whose_relevance_is_not_calibrated_says_nothing(tiny_model_path, tmp_path, monkeypatch):
    # As if the model could not read the general questions.
    monkeypatch.setattr("ctx_embed.index.hits.LEAST_QUESTIONS", 10**6)
    with SearchIndex.create(tmp_path / "index", tiny_model_path) as index:
        index.add(["the cat sat on the mat"])
        for query in ("the cat", "a good film"):
            found = index.search(query)
            assert (found[0].relevance, found.answered, "answered" in found.as_dicts()[0]) == (None, None, False)


def test_it_is_the_same_in_every_process_and_after_any_change(index, embedder, hash_model, monkeypatch):
    def relevances(index) -> list[float]:
        return [hit.relevance for hit in index.search("why does my printer jam?")]

    before = relevances(index)
    # A search embeds its queries alone.
    asked, queries = [], Model.queries
    monkeypatch.setattr(Model, "queries", lambda self, texts: asked.extend(texts) or queries(self, texts))
    with SearchIndex.open(index.path, embedder) as other:
        assert relevances(other) == before
    assert asked == ["why does my printer jam?"]
    added = index.add([f"Chapter {number}: {TEXTS[number % 4]}" for number in range(40)])
    assert relevances(index)[0] < before[0]
    for change in (partial(index.delete, added), index.compact):
        change()
        assert relevances(index) == before
    # Another model brings its own scale and no warning.
    before = index.search(TEXTS[0])[0].relevance
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.reembed(hash_model)
        after = index.search(TEXTS[0])[0].relevance
    assert after > DEFAULT_RELEVANCE
    assert after != before


ANSWERS = [
    "The museum was founded in 1901. It opens at nine in the morning and closes at six. Tickets cost four pounds.",
    "Bees dance to tell each other where flowers are. A hive has one queen. Honey keeps for thousands of years.",
    "One sentence alone about the price of bread.",
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    with SearchIndex.create(tmp_path_factory.mktemp("highlights") / "index") as made:
        made.add(ANSWERS, ids=["museum", "bees", "bread"])
        yield made


def highlight(hits, identifier: str) -> str:
    (hit,) = (hit for hit in hits if hit.id == identifier)
    start, stop = hit.highlight
    return hit.text[start:stop]


def test_the_sentence_that_answers_each_query_is_highlighted(answers, embedder):
    for mode in ("hybrid", "dense", "words"):
        hits = answers.search("entrance fee in pounds", mode=mode, highlight=True)
        assert highlight(hits, "museum") == "Tickets cost four pounds."
    # Meaning counts without a common word.
    hits = answers.search("insects communicate about blossoms", highlight=True)
    assert highlight(hits, "bees") == "Bees dance to tell each other where flowers are."
    shown = Command("index query").succeeds(answers.path, "entrance fee in pounds", "-k", "1", "--highlight")
    assert shown.splitlines()[1].strip() == "Tickets cost four pounds."
    queries = ["at what hour does it open?", "how long does honey keep?"]
    fused = answers.search(queries, fuse=True, highlight=True)
    for first, second in (answers.search(queries, highlight=True), (fused, fused)):
        assert highlight(first, "museum") == "It opens at nine in the morning and closes at six."
        assert highlight(second, "bees").startswith("Honey keeps")
    assert highlight(fused, "bread") == ANSWERS[2]
    # Those of vectors and of documents like another have none.
    for query in ({"query": "honey", "highlight": False}, {"like": "bees"}, {"query": embedder.encode("honey")}):
        assert {hit.highlight for hit in answers.search(**{"highlight": True, **query})} == {None}


def test_sentences_run_over_lines_and_long_ones_are_cut_between_lines_or_words(embedder):
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
    lines = "\n".join(f"line {number} of a log without any full stop" for number in range(40))
    for text, parts in (("".join(sentences) + "\n", sentences), (lines, lines.split("\n"))):
        assert [text[start:stop] for start, stop in places(text)] == [each.strip() for each in parts]
    assert places("") == [(0, 0)]
    text = f"{'and so on ' * 90}the museum opens at nine in the morning {'and so on ' * 90}{'x' * 900}"
    found = [text[start:stop] for start, stop in places(text)]
    assert max(map(len, found)) <= LONG_SENTENCE
    assert "".join("".join(found).split()) == "".join(text.split())
    ((start, stop),) = highlights([text], ["opening hours"], embedder.encode(["opening hours"]), embedder.encode)
    assert "the museum opens at nine" in text[start:stop]
    # Words decide where the model knows no token of the query.
    text, vectors = "First sentence here. Then ঘঙচ follows. Last one.", embedder.encode(["ঘঙচ"])
    assert not vectors.any()
    ((start, stop),) = highlights([text], ["ঘঙচ"], vectors, embedder.encode)
    assert text[start:stop] == "Then ঘঙচ follows."


def test_many_passages_of_a_document_do_not_read_it_anew_each_for_its_line(tmp_path, hash_model, monkeypatch):
    read = []

    class Text(str):
        def count(self, end, start, stop):
            read.append(stop - start)
            return super().count(end, start, stop)

    monkeypatch.setattr(searching, "counted", lambda first, text, *more: counted(first, Text(text), *more))
    with SearchIndex.create(tmp_path / "index", hash_model, chunk="sentences") as index:
        text = "".join(f"A cat {number}.\n" for number in range(500))
        index.add([text], metadata=[{"line": 3}])
        hits = index.search("cat", 500)
    assert [hit.line for hit in hits] == [3 + text.count("\n", 0, hit.start) for hit in hits]
    assert len({hit.line for hit in hits}) == 500
    assert sum(read) < 20 * len(text)
