"""The results of a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ctx_embed.index.searching.ranking import Scored
from ctx_embed.index.storage.documents import DocumentStore, Passage

# The most characters of a passage, and the most hits, that `repr` shows.
SHOWN_CHARACTERS, SHOWN_HITS = 60, 10


@dataclass(frozen=True, repr=False)
class Hit:
    """A passage that a search found.

    Args:
        id: the id of its document.
        score: the cosine of its vector and the query's, in every mode; the highest one if queries are fused.
        text: the text of the passage: the whole document unless the index cuts documents into passages.
        metadata: the metadata of its document.
        start: the offset of the passage in the document, in characters.
        line: the number of its first line in the file that the document comes from, from 1; None if not known.
        page: the number of its page, from 1; None if not known.
        fused: in the mode ``hybrid`` and of fused queries, the score that orders the hits: the sum of 1 / (60 + rank)
            over the rankings; None otherwise.
        reranked: the score of the reranker, which orders the hits if there is one; None otherwise.
        context: the passage with its neighbours, if the search asked for ``context``; None otherwise.
        document: the whole text of its document, if the search asked for it; None otherwise.
    """

    id: str | int
    score: float
    text: str
    metadata: dict[str, Any]
    start: int = 0
    line: int | None = None
    page: int | None = None
    fused: float | None = None
    reranked: float | None = None
    context: str | None = None
    document: str | None = None

    @property
    def stop(self) -> int:
        """The offset of the end of the passage in the document, in characters."""
        return self.start + len(self.text)

    def as_dict(self, query: str = "") -> dict[str, Any]:
        """Return the hit as JSON values, without those that are None, and with the snippet for a query."""
        from ctx_embed.index.searching.snippets import snippet

        first = {"id": self.id, "score": self.score, "text": self.text, "start": self.start, "stop": self.stop}
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return {**first, **fields, "snippet": snippet(query, self.text)}

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= SHOWN_CHARACTERS else f"{self.text[:SHOWN_CHARACTERS]}…"
        place = "".join(f", {name}={getattr(self, name)}" for name in ("line", "page") if getattr(self, name))
        return f"Hit({self.id!r}, {self.score:.4f}, {text!r}{place})"


class Hits(list[Hit]):
    """The hits of one query, best first: a list that a notebook shows as a table.

    Args:
        query: the text of the query; empty for a vector.
        hits: the passages found.
    """

    def __init__(self, query: str, hits: Iterable[Hit] = ()) -> None:
        super().__init__(hits)
        self.query = query

    def __repr__(self) -> str:
        more = f", ... {len(self) - SHOWN_HITS} more" if len(self) > SHOWN_HITS else ""
        return f"[{', '.join(map(repr, self[:SHOWN_HITS]))}{more}]"

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


def hits_of(
    store: DocumentStore, rankings: Sequence[Sequence[Scored]], context: int = 0, whole: bool = False
) -> list[list[Hit]]:
    """Return a list of hits for each ranking; call it inside :meth:`Database.reading`.

    Args:
        store: the documents.
        rankings: passages found, best first.
        context: the number of neighbouring passages of the same document on each side that a hit shows.
        whole: whether hits have their documents.
    """
    passages = store.fetch({found.row for ranking in rankings for found in ranking})

    def hit(found: Scored) -> Hit:
        passage = passages[found.row]
        document, start, _ = passage
        return Hit(
            document.id,
            found.score,
            passage.text,
            dict(document.metadata),
            start,
            counted(document.metadata.get("line"), document.text, "\n", start),
            counted(document.metadata.get("page"), document.text, "\f", start),
            found.fused,
            context=_context(store, found.row, passage, context) if context else None,
            document=document.text if whole else None,
        )

    return [[hit(found) for found in ranking] for ranking in rankings]


def counted(first: Any, text: str, end: str, start: int) -> int | None:
    """Return the number of the line or page at an offset of a text.

    Args:
        first: the number of the first one; None, or anything but an integer, returns None.
        text: a document.
        end: the character that ends a line or a page.
        start: the offset.
    """
    return first + text.count(end, 0, start) if isinstance(first, int) and not isinstance(first, bool) else None


def _context(store: DocumentStore, row: int, passage: Passage, count: int) -> str:
    """Return the text from ``count`` passages before a passage to ``count`` after it."""
    document = passage.document
    spans = store.spans(document)
    place = row - document.row
    near = spans[max(place - count, 0) : place + count + 1]
    return document.text[near[0][0] : near[-1][1]]
