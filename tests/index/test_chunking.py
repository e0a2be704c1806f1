import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from hypothesis import HealthCheck, given, settings, strategies as st

from ctx_embed import SearchIndex
from ctx_embed.index.chunking import (
    Passages,
    _joined,
    _tokenizer,
    checked_chunk,
    passages_of,
    sentences,
    tokens,
    whole,
    words,
)
from ctx_embed.model import Model
from ctx_embed.reading.blocks import code, markdown
from tests.helpers.errors import error
from tests.index.support.hash_model import HashModel, hash_vectors


def parts(chunk, text):
    return [text[start:stop] for start, stop in chunk(text)]


def test_sentences():
    found = ["He left.", '"Why?" she asked.', "Dr. no.", "5 apples cost 3.5 euros!", "Next", "line one\nline two"]
    assert parts(sentences, "{} {} {} {}  {}\n\n {}".format(*found)) == found
    assert parts(sentences, "") == [""]
    assert parts(sentences, "  \n\n ") == ["  \n\n "]
    # Long runs take linear time.
    for text in ("." * 200_000, " " * 200_000 + ".", "a" + "\n " * 100_000):
        sentences(text)


def test_tokens_are_cut_between_words():
    # Tokens of one word touch and are letters or digits.
    for text, joined in (("ab", True), ("a1", True), ("a-", False), ("-a", False)):
        assert _joined(f"b{text}", (1, 2), (2, 3)) is joined
    assert not _joined("a b", (0, 1), (2, 3))
    assert parts(tokens(2, words), "one two three four five") == ["one two", "three four", "five"]

    def halves(text):
        return [span for a, b in words(text) for span in ((a, (a + b) // 2), ((a + b) // 2, b))]

    assert parts(tokens(3, halves), "abcd efgh ijkl") == ["abcd", "efgh", "ijkl"]
    assert parts(tokens(4, halves), "abcd efgh ijkl") == ["abcd efgh", "ijkl"]
    assert parts(tokens(1, halves), "abcd") == ["ab", "cd"]
    assert parts(tokens(3, words), "") == [""]


@given(text=st.text("ab .!?#\n\f", max_size=80), size=st.integers(1, 12))
def test_passages_lose_no_word_and_do_not_overlap(text, size):
    for chunk in (whole, sentences, tokens(size, words)):
        spans = chunk(text)
        assert all(start <= stop for start, stop in spans)
        assert all(left[1] <= right[0] for left, right in pairwise(spans))
        assert "".join("".join(parts(chunk, text)).split()) == "".join(text.split())
    for found in (parts(tokens(size, words), text), passages(text, size)):
        assert "".join("".join(found).split()) == "".join(text.split())
        assert all(len(words(part)) <= size for part in found)


def test_the_models_own_tokens_count(tiny_model):
    tokenizer = _tokenizer(Model(tiny_model))
    offsets = tokenizer.offsets
    text = "the cat sat on the mat"
    found = [text[start:stop] for start, stop in offsets(text)]
    assert found == [token.removeprefix("##") for token in tiny_model[0].backend_tokenizer.encode(text).tokens]
    assert parts(tokens(4, offsets), text)[0].split()[:2] == ["the", "cat"]
    # Tokens without characters do not.
    places = [(0, 0), (0, 3), (3, 3)]
    encoding = type("Encoding", (list,), {"token_to_chars": list.__getitem__})(places)
    tokenizer.tokenizer = SimpleNamespace(encode_batch=lambda texts, **options: [encoding])
    assert offsets("cat").tolist() == [[0, 3]]


def test_a_chunk_that_cannot_be_used(tmp_path, hash_model):
    kinds = "none, sentences, passages, passages:N or tokens:N with a number of tokens N, e.g. tokens:256"
    for chunk in ("", "words", "tokens", "tokens:", "tokens:0", "tokens:-1", "tokens:x", 5, None):
        said = error(SearchIndex.create, tmp_path / "index", hash_model, chunk=chunk)
        assert said == f"chunk must be {kinds}, got {chunk!r}"
    assert [*map(checked_chunk, ("tokens:7", "passages:7", "passages"))] == ["tokens:7", "passages:7", "passages"]


def test_passages_are_found_with_their_document(tmp_path, hash_model):
    text = "The cat sat. A dog barked. Rain fell."
    with SearchIndex.create(tmp_path / "index", hash_model, chunk="sentences") as index:

        def texts(**options) -> list[str]:
            return sorted(hit.text for hit in index.search("x", k=10, **options))

        index.add([text, "One sentence only."], ["long", "short"], [{"n": 1}, {"n": 2}])
        (hit,) = index.search("A dog barked.", k=1, document=True)
        found = {"id": "long", "text": "A dog barked.", "start": 13, "document": text, "metadata": {"n": 1}}
        assert vars(hit).items() >= found.items()
        assert index.search("barking", mode="words")[0].start == 13
        assert texts(where="n = 1") == ["A dog barked.", "Rain fell.", "The cat sat."]
        assert (index.count(), index.get("long").text) == (2, text)
        assert (
            sorted(hash_model.seen) == texts() == ["A dog barked.", "One sentence only.", "Rain fell.", "The cat sat."]
        )
        index.upsert(["The cat sat. New."], ["long"])
        assert hash_model.seen[4:] == ["New."]
        for _ in range(2):
            assert texts() == ["New.", "One sentence only.", "The cat sat."]
            index.compact()
        assert index.delete("long") == 1
        assert texts() == ["One sentence only."]
        assert index.verify() == []


def passages(text: str, size: int, blocks=()) -> list[str]:
    cut = Passages(size, lambda texts: [len(words(text)) for text in texts], words)
    return parts(lambda text: cut.of_all([(text, blocks)])[0], text)


def test_passages_are_cut_at_the_best_places_and_a_heading_never_stands_alone():
    section = "One two three four. Five six seven eight."
    text = f"# A\n\n{section}\n\n## B\n\n{section}\n\n{section}\n\n# C\n\nend"
    second = f"## B\n\n{section}\n\n{section}"
    assert passages(text, 100, markdown(text)) == [text]
    assert passages(text, 36, markdown(text)) == [text[: text.index("# C")].strip(), "# C\n\nend"]
    assert passages(text, 24, markdown(text)) == [f"# A\n\n{section}", second, "# C\n\nend"]
    assert passages(text, 13, markdown(text))[1:3] == [f"## B\n\n{section}", section]
    assert passages(f"{section}\n\n{section}", 6) == ["One two three four.", "Five six seven eight."] * 2
    assert passages("a b c d e f g", 3) == ["a b c", "d e f", "g"]
    # Sections of a quarter of the size stay apart.
    sections = [f"# {name}\n\none two three four five six seven eight" for name in "ABC"]
    text = "\n\n".join(sections)
    assert passages(text, 24, markdown(text)) == sections
    # Without better places, passages come out alike in length.
    text = "\n\n".join(f"w{number} x y z" for number in range(9))
    assert [len(passage.split()) for passage in passages(text, 28)] == [20, 16]
    # Code is cut between lines, and pages are never joined.
    text = "def f():\n    a. B\n    c. D\n    e. F\n"
    assert passages(text, 8, code(text)) == ["def f():\n    a. B", "c. D\n    e. F"]
    assert passages("one\ftwo\n\nthree", 100) == ["one", "two\n\nthree"]

    def section(name: str, count: int) -> str:
        return f"# {name}\n\n{' '.join(['w'] * count)}".strip()

    for short, is_alone in ((0, False), (1, False), (4, True), (14, True)):
        sections = [section("A", short), section("B", 40), section("C", 40)]
        text = "\n\n".join(sections)
        assert passages(text, 64, markdown(text)) == (
            sections if is_alone else ["\n\n".join(sections[:2]), sections[2]]
        )


def test_passages_fit_the_model(tiny_model, embedder):
    assert passages_of(Model(tiny_model)).size == 256
    assert passages_of(Model(tiny_model), 9).size == 9
    assert passages_of(Model(SimpleNamespace(max_seq_length=128))).size == 126
    text = "\n\n".join(["The harbour opens late when there is fog, says the unfathomable clerk."] * 99)
    (spans,) = passages_of(Model(embedder), 50).of_all([(text, ())])
    lengths = [len(embedder.tokenizer.encode(text[start:stop], add_special_tokens=False).ids) for start, stop in spans]
    assert max(lengths) <= 50
    assert min(lengths) > 25


TITLE = "Care of bicycles"
FIRST = f"{TITLE}\n\nA clean bicycle lasts for many years and is a pleasure to ride."
SECOND = "Put a drop of oil on each link and wipe off what is left over with a dry cloth."
BOTH = f"{FIRST}\n\n{SECOND}"


def embedded(index: SearchIndex, dimension: int = 8) -> dict[tuple[str, str], str]:
    """Return what has been embedded for each passage, by id and text: the text, or a title and the text."""
    output = index.path.parent / "exported"
    index.export(output)
    rows = [json.loads(line) for line in output.with_suffix(".jsonl").read_text().splitlines()]
    found = {}
    for row, vector in zip(rows, np.load(f"{output}.npy"), strict=True):
        candidates = [row["text"], *(f"{title}\n{row['text']}" for title in (TITLE, "Chains"))]
        (found[row.get("document", row["id"]), row["text"]],) = (
            text for text in candidates if np.allclose(vector, hash_vectors([text], dimension)[0], atol=1e-5)
        )
    return found


def test_a_passage_that_lacks_the_title_is_embedded_with_it(tmp_path, hash_model):
    with SearchIndex.create(tmp_path / "notes.index", hash_model, chunk="passages:24") as index:
        index.add([BOTH], ["a"], [{"title": TITLE, "year": 2020}])
        titled = {("a", FIRST): FIRST, ("a", SECOND): f"{TITLE}\n{SECOND}"}
        assert embedded(index) == titled
        # A document that is not cut is embedded as it is, however often its text has come.
        index.add([SECOND, SECOND, "to be deleted"], ["b", "c", "gone"], [{"title": TITLE}, {}, {}])
        index.delete(["gone"])
        plain = {("b", SECOND): SECOND, ("c", SECOND): SECOND}
        assert embedded(index) == titled | plain
        assert not index.verify()
        # Another title embeds the passages again, another field does not.
        seen = len(hash_model.seen)
        index.update_metadata(["a"], {"year": 2021})
        assert len(hash_model.seen) == seen
        index.update_metadata(["a"], {"title": "Chains"})
        assert embedded(index) == {("a", FIRST): f"Chains\n{FIRST}", ("a", SECOND): f"Chains\n{SECOND}"} | plain
        assert index.get("a").metadata == {"title": "Chains", "year": 2021}
        # An id that was counted stays one.
        (counted,) = index.add([BOTH])
        index.update_metadata([counted], {"title": TITLE})
        assert index._folder.automatic([counted, "a"]) == {counted}
        index.delete([counted])
        index.update_metadata(["a"], {"title": None})
        assert embedded(index) == {("a", FIRST): FIRST, ("a", SECOND): SECOND} | plain
        # Compaction and another model keep it.
        index.update_metadata(["a"], {"title": TITLE})
        index.compact()
        assert embedded(index) == titled | plain
        index.reembed(HashModel(16))
        assert embedded(index, 16) == titled | plain
        assert len(index) == 3
        assert not index.verify()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(st.tuples(st.sampled_from([BOTH, SECOND, FIRST]), st.booleans()), max_size=4)))
def test_each_passage_has_its_own_vector_however_documents_come(tmp_path_factory, hash_model, batches):
    with SearchIndex.create(tmp_path_factory.mktemp("all") / "index", hash_model, chunk="passages:24") as index:
        for batch in batches:
            index.add([text for text, _ in batch], metadata=[{"title": TITLE} if titled else {} for _, titled in batch])
        documents = [(text, titled) for batch in batches for text, titled in batch]
        expected = {}
        for number, (text, titled) in enumerate(documents):
            for part in (FIRST, SECOND) if text == BOTH else (text,):
                with_title = titled and text == BOTH and part == SECOND
                expected[number, part] = f"{TITLE}\n{part}" if with_title else part
        assert embedded(index) == expected


def test_other_passages_are_embedded_as_they_are(tmp_path, hash_model):
    for chunk, titles in (("passages:24", ["", " ", None, 7, ["a"]]), ("sentences", [TITLE])):
        with SearchIndex.create(tmp_path / chunk, hash_model, chunk=chunk) as index:
            index.add([BOTH] * len(titles), metadata=[{"title": title} for title in titles])
            assert all(found == text for (_, text), found in embedded(index).items())
