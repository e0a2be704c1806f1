"""The results of a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from ctx_embed.index.searching.ranking import Scored
from ctx_embed.index.storage.documents import DocumentStore, Passage


@dataclass(frozen=True)
class Hit:
    """A passage that a search found.

    Args:
        id: the id of its document.
        score: the cosine of its vector and the query's, in every mode; the highest one if queries are fused.
        text: the text of the passage: the whole document unless the index cuts documents into passages.
        metadata: the metadata of its document.
        document: the whole text of its document.
        start: the offset of the passage in the document, in characters.
        fused: in the mode ``hybrid`` and of fused queries, the score that orders the hits: the sum of 1 / (60 + rank)
            over the rankings; None otherwise.
        reranked: the score of the reranker, which orders the hits if there is one; None otherwise.
        context: the passage with its neighbours, if the search asked for ``context``; None otherwise.
    """

    id: str | int
    score: float
    text: str
    metadata: dict[str, Any]
    document: str
    start: int = 0
    fused: float | None = None
    reranked: float | None = None
    context: str | None = None

    def as_dict(self, query: str = "") -> dict[str, Any]:
        """Return the hit as JSON values, with the snippet for a query.

        ``document`` and ``start`` are left out if the passage is the whole document, and so is what is None.
        """
        from ctx_embed.index.searching.snippets import snippet

        fields = {name: value for name, value in asdict(self).items() if value is not None}
        if self.document == self.text:
            del fields["document"], fields["start"]
        return {**fields, "snippet": snippet(query, self.text)}


class Hits(list[Hit]):
    """The hits of one query, best first: a list that a notebook shows as a table.

    Args:
        query: the text of the query; empty for a vector.
        hits: the passages found.
    """

    def __init__(self, query: str, hits: Iterable[Hit] = ()) -> None:
        super().__init__(hits)
        self.query = query

    def _repr_html_(self) -> str:
        from ctx_embed.index.searching.snippets import snippet

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


def hits_of(store: DocumentStore, rankings: Sequence[Sequence[Scored]], context: int = 0) -> list[list[Hit]]:
    """Return a list of hits for each ranking; call it inside :meth:`Database.reading`.

    Args:
        store: the documents.
        rankings: passages found, best first.
        context: the number of neighbouring passages of the same document on each side that a hit shows.
    """
    passages = store.fetch({found.row for ranking in rankings for found in ranking})
    found = []
    for ranking in rankings:
        hits = []
        for score, row, fused in ranking:
            document, start, _ = passages[row]
            text, metadata = passages[row].text, dict(document.metadata)
            around = _context(store, row, passages[row], context) if context else None
            hits.append(Hit(document.id, score, text, metadata, document.text, start, fused, context=around))
        found.append(hits)
    return found


def _context(store: DocumentStore, row: int, passage: Passage, count: int) -> str:
    """Return the text from ``count`` passages before a passage to ``count`` after it."""
    document = passage.document
    spans = store.spans(document)
    place = row - document.row
    near = spans[max(place - count, 0) : place + count + 1]
    return document.text[near[0][0] : near[-1][1]]
