"""The results of a search, and the checks of its arguments."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ctx_embed.errors import InputError, described, unknown_name
from ctx_embed.index.ranking import MODES, Scored
from ctx_embed.index.storage.documents import DocumentStore
from ctx_embed.index.writing.transaction import as_list
from ctx_embed.texts import well_formed


@dataclass(frozen=True)
class Hit:
    """A passage that a search found.

    Args:
        id: the id of its document.
        score: the cosine of its vector and the query's, in every mode.
        text: the text of the passage: the whole document unless the index cuts documents into passages.
        metadata: the metadata of its document.
        document: the whole text of its document.
        start: the offset of the passage in the document, in characters.
        fused: in the mode ``hybrid``, the score that orders the hits: the sum over both modes of 1 / (60 + rank);
            None in other modes.
    """

    id: str | int
    score: float
    text: str
    metadata: dict[str, Any]
    document: str
    start: int = 0
    fused: float | None = None


class Hits(list[Hit]):
    """The hits of one query, best first: a list that a notebook shows as a table.

    Args:
        query: the text of the query.
        hits: the passages found.
    """

    def __init__(self, query: str, hits: Iterable[Hit] = ()) -> None:
        super().__init__(hits)
        self.query = query

    def _repr_html_(self) -> str:
        from ctx_embed.index.fulltext import snippet

        fields = list(dict.fromkeys(name for hit in self for name in hit.metadata))
        head = "".join(f"<th>{escape(name)}</th>" for name in ("score", "id", "text", *fields))
        rows = []
        for hit in self:
            marked = escape(snippet(self.query, hit.text, "\x02", "\x03"))
            shown = marked.replace("\x02", "<b>").replace("\x03", "</b>")
            cells = [f"{hit.score:.4f}", escape(str(hit.id)), shown]
            cells += [escape(str(hit.metadata.get(name, ""))) for name in fields]
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        return f"<table><caption>{escape(self.query)}</caption><tr>{head}</tr>{''.join(rows)}</table>"


def hits_of(store: DocumentStore, rankings: Sequence[Sequence[Scored]]) -> list[list[Hit]]:
    """Return a list of hits for each ranking; call it inside :meth:`Database.reading`."""
    passages = store.fetch({found.row for ranking in rankings for found in ranking})
    found = []
    for ranking in rankings:
        hits = []
        for score, row, fused in ranking:
            document, start, _ = passages[row]
            text, metadata = passages[row].text, dict(document.metadata)
            hits.append(Hit(document.id, score, text, metadata, document.text, start, fused))
        found.append(hits)
    return found


def checked_queries(query: Any, k: Any, mode: Any, threshold: Any) -> list[str]:
    """Return the queries as a list of well-formed texts, after checking all arguments.

    Raises:
        InputError: an argument has the wrong type or value.
    """
    if isinstance(k, bool) or not isinstance(k, numbers.Integral) or k < 1:
        raise InputError(f"k must be an integer of at least 1, got {k!r}")
    if not isinstance(mode, str) or mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if threshold is not None and (
        isinstance(threshold, bool) or not isinstance(threshold, numbers.Real) or math.isnan(threshold)
    ):
        raise InputError(f"the threshold must be a cosine from -1 to 1, got {threshold!r}")
    texts = [query] if isinstance(query, str) else as_list(query, "the query", "a string or a list of strings")
    for place, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"query {place} must be a string, got {described(text)}")
    return [well_formed(text) for text in texts]
