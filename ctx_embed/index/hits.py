"""The hits of a search: passages, their relevance, and the parts of them that answer: snippets and highlights.

The relevance of a hit is the chance that a question without an answer among these passages would find nothing as good.
The best of N passages scores like a maximum, so the chance follows a Gumbel distribution:

    relevance = exp(-exp(-(DEVIATIONS * d + WORDS * share - PASSAGES * sqrt(2 ln(N + 3)) + BASE)))

d says how many standard deviations the cosine lies above that of unrelated questions, share is the share of the query's
words that the passage has, and the square root is how many deviations the best of N unrelated passages reaches (the 3
is for the smallest N). The four constants were fitted once, to questions asked to other collections of their field
(``benchmarks/unanswered.py --development``); only the mean and deviation of unrelated cosines belong to a model.

Source: Gumbel, Statistics of Extremes (1958).
"""

import math
import re
import warnings
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from ctx_embed.deadlines import require_time
from ctx_embed.index.chunking import sentences
from ctx_embed.index.documents import Span
from ctx_embed.index.vectors import Vectors
from ctx_embed.index.words import MOST_WORDS, asked, respelled, tokens_of
from ctx_embed.reading.blocks import rows as lines_of
from ctx_embed.text.normalisation import indexed, placed_words

# Maximum characters of a passage, and maximum number of hits, that `repr` shows.
SHOWN_CHARACTERS, SHOWN_HITS = 60, 10
# A query is unanswered if all hits are below this; docs/lab/search.md says how often that is wrong. Of ten questions
# without an answer, about two have a hit that is at least this relevant.
DEFAULT_RELEVANCE = 0.8
DEVIATIONS, WORDS, PASSAGES, BASE = 0.68, 1.9, 1.15, 1.82
# A model that can read fewer of the general questions has no relevance.
LEAST_QUESTIONS = 128
# Longer texts are searched for words as they are.
LONG_TEXT = 50_000
# Endings to cut off words, the fewest letters to leave, and the most letters that a passage's word may add to them.
_ENDINGS, _LEAST_STEM, _MOST_ENDING = ("ing", "ies", "ed", "es", "s"), 3, 3
# Maximum number of words and of characters in a snippet, and of words before the first that is marked.
SNIPPET_WORDS, SNIPPET_CHARACTERS, LEAD_WORDS = 24, 400, 6
# Snippets and highlights are looked for in at most this number of characters of a passage, and of all of them together.
SEARCHED_CHARACTERS, ALL_SEARCHED = 20_000, 300_000
# The part of a long passage that is searched has most of the first of a query's words, at most this number.
DENSE_WORDS = 16
_WORD, _BETWEEN = re.compile(r"[^\W_]+"), re.compile(r"[\W_]")
_LEAD = re.compile(rf"(?:(?<!\S)\S+\s+){{0,{LEAD_WORDS}}}\S*\Z")
_BEGINNING = re.compile(rf"\s*(?:\S+\s*){{1,{SNIPPET_WORDS}}}")
# The weight of all of a query's words relative to a cosine of 1; benchmarks/highlights.py shows its effect.
WORDS_WEIGHT = 0.5
# Sentences with more characters than this are cut at line ends, and longer lines between words.
LONG_SENTENCE = 400
_LONG_LINES = re.compile(rf"\S.{{0,{LONG_SENTENCE - 1}}}(?!\S)|\S{{1,{LONG_SENTENCE}}}")
# Two lines are of one paragraph if both begin with a word (the first may be an item of a list), and the first is at
# least this long and ends neither a sentence nor a statement nor a row of a table.
SHORT_LINE = 40
_PARAGRAPH = re.compile(r"(?:(?:[-*+•]|\d+[.)])\s+)?[\"'`(]*[^\W\d_].*[^.!?;{}|]")
_WORD_START = re.compile(r"[\"'`(]*[^\W\d_]")


@dataclass(frozen=True, repr=False)
class Hit:
    """A passage that a search found.

    Args:
        id: the id of its document.
        score: the cosine of the passage and the query, in every mode; the highest cosine if queries are fused.
        text: the text of the passage: the whole document unless the index cuts documents into passages.
        metadata: the metadata of its document.
        start: the offset of the passage in the document, in characters.
        line: the number of its first line in the file that the document comes from, from 1; None if not known.
        page: the number of its page, from 1; None if not known.
        fused: the score that orders the hits. In the mode ``hybrid`` it is the mean of the cosine and the score by
            words, and with ``late`` of the late score, each divided by the query's best. For fused queries it is the
            sum of 1 / (60 + rank) over them. None in other searches.
        late: how well the words of the query find their nearest ones in the passage, 0 to 1, see
            :mod:`ctx_embed.numpy_model.late`; None without ``late``, for passages beyond the best 25, for fused
            queries, and if the model has none.
        reranked: the score that orders the hits of a search with a reranker. In the mode ``hybrid`` it is computed
            like ``fused`` if the reranker gives cosines. None without a reranker.
        context: the passage with its neighbours, if the search asked for ``context``; None otherwise.
        document: the whole text of its document, if the search asked for it; None otherwise.
        corrected: what was searched for instead of words and quoted phrases of the query that the index lacks, by these
            as typed, in the modes ``words`` and ``hybrid``; None if there are none.
        relevance: the share (0 to 1) of questions without an answer in the index whose best passage would score lower,
            see :mod:`ctx_embed.index.hits`; None unless the query is a text with a token that the model
            knows.
        highlight: the sentence of the text that answers the query best, as a span of characters (start, stop), if the
            search asked for ``highlight``; None otherwise.
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
    late: float | None = None
    context: str | None = None
    document: str | None = None
    corrected: dict[str, str] | None = None
    relevance: float | None = None
    highlight: Span | None = None

    @property
    def stop(self) -> int:
        """The offset of the end of the passage in the document, in characters."""
        return self.start + len(self.text)

    def as_dict(self, query: str = "") -> dict[str, Any]:
        """Return the hit as JSON values, without fields that are None, and with the snippet for a query."""
        first = {"id": self.id, "score": self.score, "text": self.text, "start": self.start, "stop": self.stop}
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return {**first, **fields, "snippet": snippet(respelled(query, self.corrected), self.text)}

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= SHOWN_CHARACTERS else f"{self.text[:SHOWN_CHARACTERS]}…"
        place = "".join(f", {name}={getattr(self, name)}" for name in ("line", "page") if getattr(self, name))
        return f"Hit({self.id!r}, {self.score:.4f}, {text!r}{place})"


class Hits(list[Hit]):
    """The hits of one query, best first: a list that a notebook shows as a table. A vector has an empty ``query``.

    ``known``: whether the model can read the query, where it is asked to. ``answered``: whether the most relevant of
    the hits and of the ten best reaches 0.8: if not, the index hardly has an answer, and these are the nearest
    passages. None without relevance, and in the mode ``words``.
    """

    def __init__(self, query: str, hits: Iterable[Hit] = (), known: bool = True, answered: bool | None = None) -> None:
        super().__init__(hits)
        self.query, self.known, self.answered = query, known, answered

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return the hits as JSON values, each with whether the query was ``answered``, if that is known."""
        more = {} if self.answered is None else {"answered": self.answered}
        return [hit.as_dict(self.query) | more for hit in self]

    def __repr__(self) -> str:
        more = f", ... {len(self) - SHOWN_HITS} more" if len(self) > SHOWN_HITS else ""
        return f"[{', '.join(map(repr, self[:SHOWN_HITS]))}{more}]"

    def _repr_html_(self) -> str:
        fields = list(dict.fromkeys(name for hit in self for name in hit.metadata))
        head = "".join(f"<th>{escape(name)}</th>" for name in ("score", "id", "text", *fields))
        rows = []
        for hit in self:
            marked = escape(snippet(respelled(self.query, hit.corrected), hit.text, "\x02", "\x03"))
            shown = marked.replace("\x02", "<b>").replace("\x03", "</b>")
            cells = [f"{hit.score:.4f}", escape(str(hit.id)), shown]
            cells += [escape(str(hit.metadata.get(name, ""))) for name in fields]
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        return f"<table><caption>{escape(self.query)}</caption><tr>{head}</tr>{''.join(rows)}</table>"


def rounded_down(share: float) -> float:
    """Return a share with two decimals, never rounded up: 0.996 is 0.99, not 1."""
    return math.floor(100 * share + 1e-9) / 100


def counted(first: Any, text: str, end: str, start: int, known: list[tuple[int, int]] | None = None) -> int | None:
    """Return the number of the line or page at an offset; ``end`` separates them. Return None if ``first`` is None.

    ``known`` has the offsets and numbers of earlier calls for the text, which is read on from the last one before.
    """
    if not isinstance(first, int) or isinstance(first, bool):
        return None
    known = [] if known is None else known
    place = bisect(known, (start, math.inf))
    begin, number = known[place - 1] if place else (0, first)
    known.insert(place, (start, number + text.count(end, begin, start)))
    return known[place][1]


def unrelated_cosines(embed: Callable[[Sequence[str]], Any]) -> tuple[float, float] | None:
    """Return mean and deviation of the cosines of ``unanswered.txt``'s questions, which relevance depends on.

    ``embed`` is the model's :meth:`~ctx_embed.model.Model.quiet_queries`. None if the model reads too few.
    """
    questions = (files("ctx_embed.index") / "unanswered.txt").read_text(encoding="utf-8").splitlines()
    vectors = np.asarray(embed(questions), np.float32)
    vectors = vectors[vectors.any(axis=1)]
    if len(vectors) < LEAST_QUESTIONS:
        return None
    cosines = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    deviation = float(cosines.std())
    return (float(cosines.mean()), deviation) if deviation > 0 else None


def relevance(unrelated: tuple[float, float], cosine: float, share: float, passages: int) -> float:
    """Return the relevance (0 to 1) of a hit among a number of passages, by its cosine and :func:`word_shares`."""
    mean, deviation = unrelated
    height = DEVIATIONS * (cosine - mean) / deviation + WORDS * share + BASE
    height -= PASSAGES * math.sqrt(2 * math.log(passages + 3))
    # Beyond 50 the result is 0 or 1 to the last digit.
    return math.exp(-math.exp(-min(max(height, -50.0), 50.0)))


def word_shares(query: str, texts: Sequence[str]) -> list[float]:
    """Return the share of the query's words that each text has, in any form; function words do not count."""
    stems = set()
    for word in (word.lower() for word in asked(query).words[:MOST_WORDS]):
        endings = (end for end in _ENDINGS if word.endswith(end) and len(word) >= len(end) + _LEAST_STEM)
        stems.add(word.removesuffix(next(endings, "")))
    if not stems:
        return [0.0] * len(texts)
    shares = []
    # Reading a long text as it is indexed takes too long for a search.
    for lowered in [(indexed(text) if len(text) <= LONG_TEXT else text).lower() for text in texts]:
        having = 0
        for stem in stems:
            require_time()
            # A word of the text must begin with the stem and be hardly longer.
            place = lowered.find(stem)
            while place >= 0:
                if not (place and lowered[place - 1].isalnum()):
                    end = place + len(stem)
                    after = lowered[end : end + _MOST_ENDING + 1]
                    if len(after) <= _MOST_ENDING or not after.isalnum():
                        having += 1
                        break
                between = _BETWEEN.search(lowered, place)  # A word begins after something else than letters.
                place = -1 if between is None else lowered.find(stem, between.end())
        shares.append(having / len(stems))
    return shares


def snippet(query: str, text: str, opening: str = "**", closing_mark: str = "**") -> str:
    """Return the part of a text with the most query words, each between two marks; the start if it has none of them.

    The query's function words are ignored unless it has no others.
    """
    return snippets(query, [text], opening, closing_mark)[0]


def snippets(query: str, texts: Sequence[str], opening: str = "**", closing_mark: str = "**") -> list[str]:
    """Return the snippet of each text, see :func:`snippet`; ten times as fast for many texts."""
    of_query = list(dict.fromkeys(asked(query).words))[:MOST_WORDS]
    parts = densest(of_query, texts)
    searched = [text[start:stop] for text, (start, stop) in zip(texts, parts, strict=True)]
    read = [indexed(text) for text in searched]
    written = sorted({word for text in read for word in _WORD.findall(text)}) if of_query else []
    tokens = tokens_of([*of_query, *written])
    wanted = {token for ids in tokens[: len(of_query)] for token in ids}
    # The words of the texts that the query asks for in any form, by their token.
    forms = {word: ids[0] for word, ids in zip(written, tokens[len(of_query) :], strict=True) if wanted & {*ids}}
    results = []
    for text, (start, stop), part, as_indexed in zip(texts, parts, searched, read, strict=True):
        require_time()
        if not any(match[0] in forms for match in _WORD.finditer(as_indexed)):
            beginning = _BEGINNING.match(part)
            shown = part if beginning is None or beginning.end() == len(part) else f"{beginning[0].rstrip()}…"
        else:
            matches = (
                [(*match.span(), forms[match[0]]) for match in _WORD.finditer(part) if match[0] in forms]
                if as_indexed is part
                else sorted((first, last, forms[word]) for word, first, last in placed_words(part) if word in forms)
            )
            # The window with the most different words.
            counts, best, most, first = Counter[str](), 0, 0, 0
            for begin, _, token in matches:
                counts[token] += 1
                while matches[first][0] < begin - SNIPPET_CHARACTERS // 2:
                    counts.subtract([matches[first][2]])
                    first += 1
                if (different := len(+counts)) > most:
                    best, most = first, different
            lead = _LEAD.search(part, max(matches[best][0] - SNIPPET_CHARACTERS // 4, 0), matches[best][0])
            place = left = matches[best][0] if lead is None else lead.start()
            words = _BEGINNING.match(part, left, left + SNIPPET_CHARACTERS)
            right = len(part) if words is None else words.end()
            pieces = ["…" if left else ""]
            for begin, end, _ in matches:
                if begin < left or end > right or end <= place:
                    continue
                if begin > place or place == left:
                    pieces += [part[place:begin], opening, part[begin:end], closing_mark]
                else:  # it overlaps or follows the last one: pairs of Chinese characters do
                    pieces[-2] += part[place:end]
                place = end
            rest = f"{part[place:right].rstrip()}…" if right < len(part) else part[place:]
            shown = "".join([*pieces, rest])
        shown = f"…{shown}" if start and not shown.startswith("…") else shown
        results.append(f"{shown}…" if stop < len(text) and not shown.endswith("…") else shown)
    return results


def densest(words: Iterable[str], texts: Sequence[str]) -> list[Span]:
    """Return the part of each text with the most words of a query in any form, so that work is bounded.

    Texts of at most :data:`SEARCHED_CHARACTERS` (fewer if there are many) are returned whole.
    """
    stems = dict.fromkeys(word.lower()[: max(len(word) - _MOST_ENDING, _LEAST_STEM)] for word in words)
    size = min(SEARCHED_CHARACTERS, ALL_SEARCHED // max(len(texts), 1) + SNIPPET_CHARACTERS)
    parts = []
    for text in texts:
        if len(text) <= size:
            parts.append((0, len(text)))
            continue
        require_time()
        lowered, half = text.lower(), size // 2
        # The number of stems in each window of two halves, by its first half.
        windows: Counter[int] = Counter({0: 0})
        for stem in list(stems)[:DENSE_WORDS]:
            counted, place = -1, lowered.find(stem)
            while place >= 0:
                last = place // half
                windows.update(range(max(last - 1, counted + 1), last + 1))
                counted, place = last, lowered.find(stem, (last + 1) * half)
        best = min(max(windows, key=lambda window: (windows[window], -window)) * half, len(text) - size)
        # Whole words only.
        start = best if not best else text.find(" ", best, best + SNIPPET_CHARACTERS) + 1 or best
        parts.append((start, best + size))
    return parts


def places(text: str) -> list[Span]:
    """Return what a highlight chooses from: the sentences of paragraphs, and single lines of lists and source code."""
    paragraphs, above = list[Span](), ""
    for start, stop, *_ in lines_of(text):
        line = text[start:stop]
        is_paragraph = len(above) >= SHORT_LINE and _PARAGRAPH.fullmatch(above.strip())
        if is_paragraph and start == paragraphs[-1][1] + 1 and _WORD_START.match(line.strip()):
            paragraphs[-1] = (paragraphs[-1][0], stop)
        else:
            paragraphs.append((start, stop))
        above = line
    spans: list[Span] = []
    for first, last in paragraphs:
        for start, stop in ((first + start, first + stop) for start, stop in sentences(text[first:last])):
            is_long = stop - start > LONG_SENTENCE
            spans += [line.span() for line in _LONG_LINES.finditer(text, start, stop)] if is_long else [(start, stop)]
    return spans or [(0, len(text))]


def highlights(
    texts: Sequence[str], queries: Sequence[str], vectors: Vectors, embed: Callable[[Sequence[str]], Vectors]
) -> list[Span]:
    """Return the span in each text that answers one of the queries best, by their words and vectors (Q, dimension).

    ``embed`` returns unit vectors (n, dimension) of texts.
    """
    words = list(dict.fromkeys(word for query in queries for word in asked(query).words))
    spans = []
    for text, (first, last) in zip(texts, densest(words, texts), strict=True):
        require_time()
        spans.append([(first + start, first + stop) for start, stop in places(text[first:last])])
    parts = [text[slice(*span)] for text, of_text in zip(texts, spans, strict=True) for span in of_text]
    if len(parts) == len(texts):
        return [span for (span,) in spans]
    with warnings.catch_warnings():
        # The model may know too few words of a line.
        warnings.simplefilter("ignore")
        # Without the meaning of the query, its words decide.
        cosines = (embed(parts) @ vectors.T).max(axis=1) if vectors.any() else np.zeros(len(parts), np.float32)
    shares: Any = np.max([word_shares(query, parts) for query in queries], axis=0)
    nearness = cosines + np.float32(WORDS_WEIGHT) * shares
    ends = np.cumsum([len(of_text) for of_text in spans])[:-1]
    return [of_text[int(near.argmax())] for of_text, near in zip(spans, np.split(nearness, ends), strict=True)]
