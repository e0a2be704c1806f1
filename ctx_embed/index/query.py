"""What a search asks for: its options, declared once for Python, commands, HTTP and MCP alike, and its queries."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from unicodedata import category

from ctx_embed.deadlines import timely
from ctx_embed.errors import InputError, described, quoted
from ctx_embed.index.filters import Condition, field_path, parse_filter
from ctx_embed.options import documented, option, require_valid
from ctx_embed.texts import as_list, listed, well_formed

if TYPE_CHECKING:
    from ctx_embed.index.documents import Id
    from ctx_embed.index.vectors import Vectors

Mode: TypeAlias = Literal["hybrid", "dense", "words"]
# Maximum candidates for mmr, which compares all pairs of them.
MOST_DIVERSIFIED = 4096
# Limits: texts and ids in `exclude`, ids in `like`, and characters of a query and of all texts in `exclude`.
MOST_EXCLUDED, MOST_LIKED, MOST_CHARACTERS = 10_000, 1_000, 1_000_000
# The options that searches without an index have, too.
OF_HITS = ("k", "mode", "late", "threshold", "min_relevance")
# The value of `group` that groups hits by document.
BY_DOCUMENT = "id"


@documented
@dataclass(frozen=True)
class Options:
    """The options of :meth:`SearchIndex.search`.

    Raises:
        InputError: a value has the wrong type or range, or the filter cannot be understood.
    """

    k: int = option(10, "Hits for each query; there may be fewer.", least=1, flag="-k")
    mode: Mode | None = option(
        None,
        "By meaning (dense: cosines), by words (BM25), or by the mean of both (hybrid).",
        default_is="hybrid for texts, dense for vectors and like",
    )
    late: bool = option(
        True, "In hybrid, order the best passages by what each word of the query finds in them, too (late interaction)."
    )
    where: str | None = option(
        None, "A metadata filter, applied before ranking: 'year >= 2020 and lang = \"en\"'.", metavar="FILTER"
    )
    threshold: float | None = option(None, "The lowest cosine of a hit.", least=-1, most=1)
    exclude: str | int | Sequence[str | int] = option(
        (),
        "A text, or the id of a document, to keep away from, in dense and hybrid; such documents are left out.",
        flag="--not",
        metavar="TEXT|ID",
        repeated=True,
    )
    fuse: bool = option(False, "Make one ranking of several queries, by reciprocal ranks.")
    offset: int = option(0, "Best hits to skip.", least=0)
    group: str | None = option(
        None, "Only the best hit of each document (id) or value of a metadata field.", metavar="FIELD"
    )
    mmr: float | None = option(
        None, "Varied hits, by maximal marginal relevance: 1 relevance, 0 variety.", least=0, most=1, metavar="LAMBDA"
    )
    context: int = option(0, "Neighbouring passages to show on each side of a hit.", least=0)
    rerank: Any = option(None, "A model that scores the candidates again: minilm, a name or a folder.", metavar="MODEL")
    candidates: int = option(50, "The best passages that a reranker and mmr choose from.", least=1)
    document: bool = option(False, "Give hits the whole texts of their documents.")
    min_relevance: float | None = option(
        None, "The lowest relevance of a hit; 0.8 leaves out most of what hardly answers.", least=0, most=1
    )
    highlight: bool = option(False, "Find the sentence of each hit that answers the query best.")
    deadline: float | None = option(None, "Seconds after which the search gives up.", above=0)

    def __post_init__(self) -> None:
        require_valid(self)
        if self.mmr is not None and self.candidates > MOST_DIVERSIFIED:
            raise InputError(f"candidates must be at most {MOST_DIVERSIFIED} with mmr, got {self.candidates}")
        if self.group is not None:
            if not isinstance(self.group, str):
                raise InputError(f"group must be 'id' or a metadata field, got {described(self.group)}")
            field_path(self.group)
        # A filter that cannot be parsed is an error here.
        _ = self.condition

    @cached_property
    def condition(self) -> Condition | None:
        """The filter ``where``, parsed; None without one."""
        return None if self.where is None else parse_filter(self.where)


@dataclass(frozen=True)
class Query:
    """What a search asks for, checked by :func:`parse_query`: texts, vectors, or documents that hits shall be like.

    ``texts`` (Q) are empty for vectors; ``vectors`` (Q, dimension) are unit vectors, None until texts are embedded.
    ``single``: the caller gave one query, not a list.
    """

    options: Options
    mode: Mode
    texts: Sequence[str]
    vectors: Vectors | None
    single: bool
    like: Sequence[Id]
    exclude: Sequence[Id]


def is_blank(text: str) -> bool:
    """Return whether a query has nothing but spaces, punctuation and control characters: it finds nothing."""
    return all(category(character)[0] in "CPZ" for character in text)


def parse_query(options: Options, query: Any, like: Any, dimension: int) -> Query:
    """Return what a search asks for, by the arguments of :meth:`SearchIndex.search`.

    Raises:
        InputError: the query has a wrong type or is too large, or does not go with the options.
    """
    # Commands show the options above without NumPy.
    import numpy as np

    from ctx_embed.index.documents import checked_id
    from ctx_embed.vectors import unit_vector

    texts, vectors, single = [""], None, True
    liked: list[Id] = []
    if like is not None:
        if query is not None:
            raise InputError("give search either a query or like, not both")
        liked = [checked_id(identifier, 1) for identifier in listed(like, "like", "an id or a list of ids")]
        if not liked:
            raise InputError("like must have at least one id, got an empty list")
        _require_few("like", len(liked), MOST_LIKED, "ids")
    else:
        is_text = isinstance(query, str)
        given = [query] if is_text else as_list(query, "the query", "a text, a vector or a list of texts or vectors")
        has_texts = not given or isinstance(given[0], str)
        single = is_text or (not has_texts and _is_vector(given))
        if not has_texts and (single or _is_vector(given[0])):
            if options.mode not in (None, "dense"):
                raise InputError(f"mode {quoted(options.mode)} needs texts; search with vectors in mode 'dense'")
            rows = [query] if single else given
            vectors = np.stack([unit_vector(row, dimension, f"query {n}") for n, row in enumerate(timely(rows), 1)])
            texts = [""] * len(vectors)
        else:
            texts = []
            for number, text in enumerate(timely(given), 1):
                if not isinstance(text, str):
                    raise InputError(f"query {number} must be a string, got {described(text)}")
                name = "the query" if is_text else f"query {number}"
                _require_few(name, len(text), MOST_CHARACTERS, "characters")
                texts.append("" if is_blank(text) else well_formed(text))
    if options.rerank is not None and vectors is not None:
        raise InputError("rerank needs texts; a reranker cannot read vectors")
    if options.min_relevance is not None and (vectors is not None or liked):
        raise InputError("min_relevance needs queries that are texts; use threshold, the lowest cosine")
    mode = options.mode or ("dense" if liked or vectors is not None else "hybrid")
    exclude = listed(options.exclude, "exclude", "a text, an id or a list of them")
    _require_few("exclude", len(exclude), MOST_EXCLUDED, "texts and ids")
    avoided = [well_formed(item) if isinstance(item, str) else checked_id(item, 1) for item in exclude]
    characters = sum(len(item) for item in avoided if isinstance(item, str))
    _require_few("exclude", characters, MOST_CHARACTERS, "characters")
    if avoided and mode == "words":
        raise InputError("exclude needs mode 'dense' or 'hybrid', got 'words'")
    return Query(options, mode, texts, vectors, single, liked, avoided)


def _require_few(name: str, count: int, most: int, unit: str) -> None:
    if count > most:
        raise InputError(f"{name} must have at most {most:,} {unit}, got {count:,}")


def _is_vector(value: Any) -> bool:
    """Return whether a value is a list or an array that starts with a number."""
    try:
        first = value[0] if len(value) and not isinstance(value, str | bytes) else None
    except (KeyError, TypeError):
        return False
    # In NumPy and torch, a number in an array has the method `item`.
    return (isinstance(first, numbers.Real) and not isinstance(first, bool)) or getattr(first, "ndim", None) == 0
