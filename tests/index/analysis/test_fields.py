from __future__ import annotations

import pytest

from ctx_embed import SearchIndex
from ctx_embed.errors import InputError
from ctx_embed.index.analysis.contents import Field


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    metadata = [
        {"year": 2020, "lang": "en", "ok": True, "tags": ["a", "b", "a"]},
        {"year": 1999.5, "lang": "en", "ok": False, "gone": None, "tags": ["b", 7]},
        {"year": 2020, "lang": "fr", "ok": True, "more": {"deep": 1}},
        {"year": "unknown", "lang": "en"},
        {},
    ]
    with SearchIndex.create(tmp_path_factory.mktemp("fields") / "i") as index:
        index.add(["one film", "two films", "a cat", "prices rise", "nothing"], metadata=metadata)
        yield index


def test_fields_have_types_ranges_and_values(index):
    assert index.fields() == [
        Field("lang", "string", 4, "en", "fr", [("en", 3), ("fr", 1)]),
        Field("year", "number", 4, 1999.5, 2020, [(2020, 2), (1999.5, 1)]),
        Field("ok", "boolean", 3, None, None, [(True, 2), (False, 1)]),
        Field("tags", "list", 2, None, None, [("b", 2), ("a", 1)]),
        Field("more", "object", 1, None, None, []),
    ]
    assert index.fields(most=1)[0].values == [("en", 3)]


def test_a_similarity_is_explained_from_both_sides(index):
    found = index.explain("film", "two films")
    (hit,) = [hit for hit in index.search("film") if hit.text == "two films"]
    assert found.score == pytest.approx(hit.score, abs=1e-6)
    assert found.query.cosine == pytest.approx(hit.score, abs=2e-5)
    assert found.document.cosine == pytest.approx(hit.score, abs=2e-5)
    weights = {token.text: token.weight for token in found.document.tokens}
    assert max(weights, key=weights.get) == "films"


def test_what_cannot_be_explained_is_one_line(index):
    with pytest.raises(InputError, match=r"the text must be a string, got None"):
        index.explain("film", None)
