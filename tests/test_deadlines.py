"""Reading and embedding a text ends at the deadline, as a search of the index does."""

import time

import pytest

from ctx_embed import SearchIndex
from ctx_embed.errors import LateError

# Each of these characters is read as 18 letters, so that the tokenizer has the most to do.
LONG = "\ufdfa" * 500_000


@pytest.mark.parametrize("queries", [LONG, ["a cat", LONG[:400_000], LONG[400_000:] * 4]])
def test_a_search_with_a_long_query_ends_at_its_deadline(tmp_path, queries):
    with SearchIndex.create(tmp_path / "index") as index:
        index.add(["a cat"])
        begin = time.process_time()
        with pytest.raises(LateError, match=r"took longer than 0\.5 s"):
            index.search(queries, deadline=0.5)
        assert time.process_time() - begin < 3
        assert index.search("a cat", deadline=60)[0].text == "a cat"
