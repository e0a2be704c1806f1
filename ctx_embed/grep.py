"""Search files by meaning without an index, in memory that does not grow with the size of text files.

Called by ``ctx-embed grep``; ``cli/grep.py`` prints the hits. The file has three parts: the texts of files, folders and
pipes; BM25 while they are read; and the best passages so far, with the hits among them.

The words that BM25 counts are those of SQLite's full-text index, as in an index's own search. The length of a passage
is its number of characters, which needs no counting of words.
"""

import codecs
import io
import os
import sqlite3
import stat
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, described, quoted, unknown_name
from ctx_embed.index.chunking import passages_of
from ctx_embed.index.database import TOKENIZER
from ctx_embed.index.documents import embedded_texts
from ctx_embed.index.following import FolderOptions
from ctx_embed.index.hits import DEFAULT_RELEVANCE, Hit, counted, highlights, relevance, unrelated_cosines, word_shares
from ctx_embed.index.query import OF_HITS, Mode, Options
from ctx_embed.index.search import DEPTH, second_look, shares_of_best
from ctx_embed.index.vectors import Vectors
from ctx_embed.index.words import K1, LEAST_WEIGHT, MOST_WORDS, B, asked
from ctx_embed.model import Model
from ctx_embed.numpy_model.late import Late
from ctx_embed.options import takes
from ctx_embed.reading import encodings
from ctx_embed.reading.blocks import KINDS
from ctx_embed.reading.decoding import Extracted, UnreadableFileError, reasons
from ctx_embed.reading.encodings import ASCII, CONTINUATION, REPAIR, SAMPLE_BYTES, UTF_8
from ctx_embed.reading.formats import format_of
from ctx_embed.reading.opening import STANDARD_INPUT, opened, suffix_of, unpacked
from ctx_embed.reading.rows import documents_in
from ctx_embed.reading.sources import Report
from ctx_embed.reading.tables import open_rows
from ctx_embed.reading.units import records_of
from ctx_embed.reading.walking import File, Globs, is_index, walk
from ctx_embed.reading.workers import Extraction
from ctx_embed.text.normalisation import indexed, is_indexed_as_written, words as words_of
from ctx_embed.texts import well_formed

__all__ = ["Found", "Search", "grep"]

# The name of standard input in hits.
STANDARD_INPUT_NAME = "(standard input)"
# A plain file of more bytes than this, and every pipe, is read in pieces of about this many.
PIECE_BYTES = 1 << 20
# The structure of a piece by the reader of its file; Markdown counts as prose, since a piece may begin anywhere.
_PIECE_KINDS = {"rows": "rows", "code": "code"}


class Text(NamedTuple):
    """A text of the file ``name``, or a piece of one."""

    name: str
    extracted: Extracted
    # The number of characters before it in the file.
    start: int = 0
    # Whether it is a record, all of which counts as one line of the file.
    one_line: bool = False


@dataclass(frozen=True)
class Sources(FolderOptions):
    """Files, folders and pipes to read, see :func:`ctx_embed.grep.grep`; ``report`` says which could not be read."""

    paths: Sequence[str]
    encoding: str | None = None
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.paths:
            raise InputError("there must be at least one file or folder to search in, got none")
        for path in self.paths:
            if path != STANDARD_INPUT and not os.path.exists(path):
                raise InputError(f"{path}: no such file or folder")
            if os.path.isdir(path) and is_index(path):
                raise InputError(f"{path}: is a search index; search it with ctx-embed index query {path} QUESTION")
        Globs(self.include)
        Globs(self.exclude)
        encodings.require_encoding(self.encoding)

    def texts(self) -> Iterator[Text]:
        """Yield the texts of all files in order."""
        with Extraction() as extraction:
            for (name, path, whole), texts in extraction.read((source, source[2]) for source in self._sources()):
                try:
                    with reasons(path):
                        if isinstance(texts, Exception):
                            raise texts
                        if whole is not None:
                            yield from (Text(f"{name}{extracted.part}", extracted) for extracted in texts)
                        elif os.path.isfile(path) and (records := records_of(path, None, self.fields)):
                            fields, notes = records
                            with open_rows(path, needed=fields.needed, encoding=self.encoding) as table:
                                for number, _, document in documents_in(table, fields):
                                    title = document.metadata.get("title")
                                    yield Text(name, Extracted(document.text, title=title, line=number), one_line=True)
                                if said := dict.fromkeys([*notes, *table.notes]):
                                    self.report.notes[name] = "; ".join(said)
                        else:
                            kind = _PIECE_KINDS.get(format_of(path).reader, "prose")
                            with opened(path) as stream:
                                for text, start, line in pieces(unpacked(stream), self.encoding, name=name):
                                    yield Text(name, Extracted(text, kind, line=line), start)
                except UnreadableFileError as error:  # noqa: PERF203
                    if not (error.counted or str(error) == "binary") or path in self.paths:
                        self.report.failed[name] = str(error)

    def _sources(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield for each file its name in hits, its path, and the path again if it is read as a whole."""
        for path in self.paths:
            if path == STANDARD_INPUT:
                yield STANDARD_INPUT_NAME, path, None
            elif os.path.isdir(path):
                for each in walk(path, self.include, self.exclude, bool(self.follow_links), self.report.remarks):
                    name = each.source if path == os.curdir else os.path.join(path, each.source)
                    if isinstance(each, File):
                        yield from self._file(name, each.path, each.size)
                    elif each.failed:
                        self.report.failed[name] = each.reason
            elif stat.S_ISREG((status := os.stat(path)).st_mode):
                yield from self._file(path, path, status.st_size)
            else:
                yield path, path, None

    def _file(self, name: str, path: str, size: int) -> Iterator[tuple[str, str, str | None]]:
        kind = format_of(path)
        if not kind.installed:
            self.report.lacking[suffix_of(path)] += 1
            return
        in_pieces = size > PIECE_BYTES or path.lower().endswith(".gz") or kind.rows or self.encoding is not None
        yield name, path, None if in_pieces and not kind.apart and kind.reader != "binary" else path


def pieces(
    stream: io.BufferedReader, encoding: str | None = None, size: int = PIECE_BYTES, name: str = STANDARD_INPUT_NAME
) -> Iterator[tuple[str, int, int]]:
    """Yield the pieces of a text, cut after a blank line, a line or a word, with the characters and lines before each.

    ``size`` bytes are read at a time. Warnings of bytes that are not UTF-8 name the file ``name``.
    """
    raw = stream.read(size)
    encoding = encoding or encodings.marked(raw)
    if encoding is None and encodings.is_binary(raw):
        raise UnreadableFileError("binary", counted=True)
    first = len(raw) - len(raw.lstrip(ASCII))
    chosen = encoding or (UTF_8 if first == len(raw) else encodings.settled(raw[first:][:SAMPLE_BYTES]))
    errors = REPAIR if chosen == UTF_8 else "replace"
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(chosen)(errors), translate=True)
    rest, start, line, warned = "", 0, 1, False
    while raw:
        following = stream.read(size)
        if chosen == UTF_8 and not warned:
            # The ends may lie within a character.
            begin = len(raw[:3]) - len(raw[:3].lstrip(CONTINUATION))
            try:
                codecs.utf_8_decode(raw[begin:], "strict", False)
                wrong = raw.find(b"\0")
            except UnicodeDecodeError as error:
                wrong = begin + error.start
            if wrong >= 0:
                encodings.warn_of_wrong_bytes(name, raw, wrong, line + rest.count("\n"))
                warned = True
        text = rest + decoder.decode(raw, final=not following).replace("\0", " ")
        if not start:
            text = text.removeprefix("\ufeff")
        end = len(text)
        for mark in ("\n\n", "\n", " ") if following else ():
            if (place := text.rfind(mark, len(text) // 2)) >= 0:
                end = place + len(mark)
                break
        if end:
            yield well_formed(text[:end]), start, line
        rest, start, line, raw = text[end:], start + end, line + text.count("\n", 0, end), following


class WordCounts:
    """Counts of a question's words in the passages so far; function words only if the question has no others."""

    def __init__(self, question: str) -> None:
        self.required = asked(question).phrases
        self.passages = self.characters = 0
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='{TOKENIZER}')")
        self._connection.execute("CREATE VIRTUAL TABLE tokens USING fts5vocab(words, instance)")
        words = list(dict.fromkeys(word.lower() for word in asked(question).words))[:MOST_WORDS]
        self._insert(enumerate(words))
        tokens = [token for (token,) in self._connection.execute("SELECT term FROM tokens")]
        # The number of words of the question with each stem.
        self._places = {token: place for place, token in enumerate(dict.fromkeys(tokens))}
        self._asked = np.array(list(Counter(tokens).values()), np.float64)
        self._having = np.zeros(len(self._places))
        # A stem and the words that it stands for in a passage agree in all letters but the stem's last one.
        self._starts = [token[:-1] or token for token in self._places]
        if self.required:
            self._starts += [word[0] for phrase in self.required for word in phrase.strip('"').split()]

    def count(self, texts: Sequence[str]) -> tuple[list[int], NDArray[Any]]:
        """Return the places of the passages that match the question, and how often each word occurs in them."""
        self.passages += len(texts)
        self.characters += sum(map(len, texts))
        rows = []
        for row, text in enumerate(texts):
            lowered = text.lower()
            # Let SQLite read only passages that may match: it takes 20 times as long as this test. Words may be indexed
            # in another form than they are written: without accents, joined at line ends, under another name.
            as_written = lowered.isascii() and is_indexed_as_written(lowered)
            if not as_written or any(start in lowered for start in self._starts):
                rows.append((row, indexed(text)))
        if not rows:
            return [], np.empty((0, len(self._places)))
        self._insert(rows)
        counts = np.zeros((len(texts), len(self._places)))
        marks = ",".join("?" * len(self._places))
        select = f"SELECT doc, term, count(*) FROM tokens WHERE term IN ({marks}) GROUP BY doc, term"
        for row, token, number in self._connection.execute(select, list(self._places)):
            counts[row, self._places[token]] = number
        self._having += (counts > 0).sum(0)
        places = np.flatnonzero(counts.any(1))
        if self.required:
            select = "SELECT rowid FROM words WHERE words MATCH ?"
            matching = self._connection.execute(select, (" AND ".join(self.required),))
            places = np.array(sorted(row for (row,) in matching), np.int64)
        return places.tolist(), counts[places]

    def scores(self, counts: NDArray[Any], lengths: Sequence[int]) -> NDArray[Any]:
        """Return BM25 scores (n,) of passages from their counts (n, words) and statistics of all passages so far."""
        norms = K1 * (1 - B + B * np.array(lengths) * self.passages / max(self.characters, 1))
        weights = np.log((self.passages - self._having + 0.5) / (self._having + 0.5))
        asked = self._asked * np.maximum(weights, LEAST_WEIGHT)
        scores: NDArray[Any] = (asked * counts * (K1 + 1) / (counts + norms[:, None])).sum(1)
        return scores

    def _insert(self, rows: Any) -> None:
        self._connection.execute("INSERT INTO words (words) VALUES ('delete-all')")
        self._connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)


# Number of characters to embed at a time.
BATCH_CHARACTERS = 1 << 19
# Maximum characters of a passage that a hit shows; longer passages only come from words of thousands of characters.
MOST_CHARACTERS = 1 << 14
# Store this many times the passages that are needed, since their ranks change as more passages are read.
SPARE = 8


@dataclass(frozen=True, repr=False)
class Found(Hit):
    """A hit with the lines around it. Its ``id`` is the path of its file.

    Args:
        nearest_line: the number of the line in the file at which the highlight begins, from 1; None if not known.
        before: the lines before the passage, and the start of its first line.
        after: the rest of its last line, and the lines after it.
    """

    nearest_line: int | None = None
    before: str = ""
    after: str = ""

    def as_dict(self, query: str = "") -> dict[str, Any]:
        """Return the path, lines, text and scores of the hit as JSON values, without those that are None."""
        start, stop = self.highlight or (0, len(self.text))
        fields = {
            "path": self.id,
            "line": self.line,
            "page": self.page,
            "nearest": self.text[start:stop],
            "nearest_line": self.nearest_line,
            "highlight": (start, stop),
            "text": self.text,
            "score": self.score,
            "fused": self.fused,
            "late": self.late,
            "relevance": self.relevance,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass
class _Candidate:
    """A passage that may be a hit: its place among all, and how often it has each word of the question."""

    order: int
    hit: Found
    counts: NDArray[Any] | None = None
    vector: Vectors | None = None


class Search:
    """A search in texts while they are read, in bounded memory for any number of texts.

    Args:
        question: what to search for.
        files: whether to return only the best hit of each file.
        before: the number of lines before a hit to include in :attr:`Found.before`.
        after: the number of lines after it to include in :attr:`Found.after`.
        model: a name, a path or a loaded model; None is the default model.
        backend: "numpy" or "torch"; None chooses.
        hits: options of :class:`~ctx_embed.index.query.Options`: ``k``, ``mode`` (None: ``hybrid``), ``late``,
            ``threshold`` and ``min_relevance`` (None: 0.8, and in mode ``words`` any).

    Attributes:
        lines: the number of lines read so far.
        hidden: the number of passages that :meth:`hits` last left out because of their relevance or cosine.

    Raises:
        InputError: an option has the wrong type or range, the question has no word, or there is no such model.
    """

    @takes(Options, but=tuple(vars(Options()).keys() - set(OF_HITS)))
    def __init__(
        self,
        question: str,
        *,
        files: bool = False,
        before: int = 0,
        after: int = 0,
        model: Any = None,
        backend: str | None = None,
        **hits: Any,
    ) -> None:
        if unknown := hits.keys() - set(OF_HITS):
            raise unknown_name("option", min(unknown), OF_HITS)
        self.options = Options(**hits)
        if not isinstance(question, str):
            raise InputError(f"the question must be a string, got {described(question)}")
        if not words_of(question):
            raise InputError(f"the question must have a word, got {quoted(question)}")
        self.question = well_formed(question)
        self.mode: Mode = self.options.mode or "hybrid"
        self.files = files
        self._around = (before, after)
        self.lines = self.hidden = 0
        self.model = Model.of(model, backend)
        self._query = self.model.queries([self.question])[0]
        self._cut = passages_of(self.model)
        self._words = None if self.mode == "dense" else WordCounts(self.question)
        self._unrelated = unrelated_cosines(self.model.quiet_queries) if self.mode != "words" else None
        self._depth = max(2 * self.options.k, DEPTH)
        self._passages = 0
        self._nearest: list[_Candidate] = []
        self._worded: list[_Candidate] = []

    def read(self, texts: Iterable[Text]) -> Iterator[int]:
        """Read texts; yield the number of lines read so far after each batch."""
        batch: list[Text] = []
        characters = 0
        for text in texts:
            batch.append(text)
            # Records may be short, and each adds some work whatever its length.
            characters += len(text.extracted.text) + BATCH_CHARACTERS // 4096
            if characters >= BATCH_CHARACTERS:
                self._read(batch)
                yield self.lines
                batch, characters = [], 0
        if batch:
            self._read(batch)
            yield self.lines

    def _read(self, batch: Sequence[Text]) -> None:
        structured = [(text.extracted.text, KINDS[text.extracted.kind](text.extracted.text)) for text in batch]
        spans = self._cut.of_all(structured)
        passages = [(text, *span) for text, of_text in zip(batch, spans, strict=True) for span in of_text]
        contents = [text.extracted.text[start:stop] for text, start, stop in passages]
        worded, counts = ([], np.empty((0, 0))) if self._words is None else self._words.count(contents)
        cosines, vectors = np.full(len(passages), np.nan), None
        if self.mode != "words":
            titled = [
                embedded
                for extracted, of_text in zip((text.extracted for text in batch), spans, strict=True)
                for embedded in embedded_texts(extracted.text, {"title": extracted.title}, of_text, titled=True)
            ]
            vectors = _embedded(self.model, titled)
            cosines = vectors @ self._query
        # The passages that are among the nearest so far.
        floor = self._nearest[-1].hit.score if len(self._nearest) == self._depth else -2.0
        # A text that the model cannot read is a zero vector, which has no meaning.
        is_near = (cosines > floor) & (cosines != 0)
        if self._words is not None and self._words.required:
            is_near &= np.isin(np.arange(len(cosines)), worded)
        near = np.flatnonzero(is_near)
        nearest: list[int] = near[np.argsort(-cosines[near], kind="stable")][: self._depth].tolist()
        # The passages that are among the best so far by the words of the question, as places in ``worded``.
        best: list[int] = []
        if self._words is not None and worded:
            scores = self._words.scores(counts, [len(contents[row]) for row in worded])
            best = np.argsort(-scores, kind="stable")[: SPARE * self._depth].tolist()
        candidates = {
            row: _Candidate(
                self._passages + row,
                self._found(*passages[row], float(cosines[row])),
                # A copy, because a row of the vectors keeps them all in memory.
                vector=None if vectors is None else vectors[row].copy(),
            )
            for row in {*nearest, *(worded[place] for place in best)}
        }
        new = [candidates[row] for row in nearest]
        self._nearest = sorted([*self._nearest, *new], key=lambda each: -each.hit.score)[: self._depth]
        for place in best:
            each = candidates[worded[place]]
            each.counts = counts[place]
            self._worded.append(each)
        if len(self._worded) > 2 * SPARE * self._depth:
            self._worded = [each for _, each in self._by_words()[: SPARE * self._depth]]
        self._passages += len(passages)
        self.lines += sum(text.extracted.text.count("\n") + (not text.extracted.text.endswith("\n")) for text in batch)

    def _by_words(self) -> list[tuple[float, _Candidate]]:
        """Return the passages that have words of the question, with their BM25 scores, best first."""
        if self._words is None or not self._worded:
            return []
        counts = np.stack([each.counts for each in self._worded if each.counts is not None])
        scores = self._words.scores(counts, [len(each.hit.text) for each in self._worded])
        orders = np.array([each.order for each in self._worded])
        return [(float(scores[place]), self._worded[place]) for place in np.lexsort((orders, -scores)).tolist()]

    def _found(self, source: Text, start: int, stop: int, cosine: float) -> Found:
        """Return a passage as a hit, with the lines around it."""
        name, extracted, offset, one_line = source
        stop = min(stop, start + MOST_CHARACTERS)
        text = extracted.text
        first = extracted.line if one_line else counted(extracted.line, text, "\n", start)
        page = counted(1, text, "\f", start) if extracted.pages else None
        before, after = self._around
        begin, end = start, stop
        for _ in range(before + 1):
            begin = text.rfind("\n", 0, max(begin, 0))
        for _ in range(after + 1):
            end = text.find("\n", end + 1) if end >= 0 else end
        begin = max(begin + 1, start - MOST_CHARACTERS)
        end = min(len(text) if end < 0 else end, stop + MOST_CHARACTERS)
        return Found(
            name,
            cosine,
            text[start:stop],
            {} if extracted.title is None else {"title": extracted.title},
            offset + start,
            first,
            page,
            nearest_line=first if one_line else None,
            before=text[begin:start],
            after=text[stop:end],
        )

    def hits(self) -> list[Found]:
        """Return the hits among the passages read so far, best first."""
        by_words = self._by_words()[: self._depth]
        if self.mode == "hybrid":
            by_order = {each.order: score for score, each in by_words}
            candidates = {each.order: each for each in [*(each for _, each in by_words), *self._nearest]}
            # As searches of an index fuse them, see ranking_of.
            of_words = shares_of_best([by_order.get(order, 0.0) for order in candidates])
            fused = (shares_of_best([each.hit.score for each in candidates.values()]) + of_words) / 2
            order = np.argsort(-fused, kind="stable")
            both = [list(candidates.values())[place] for place in order.tolist()]

            def look(count: int) -> Late | None:
                texts, vectors = [each.hit.text for each in both[:count]], [each.vector for each in both[:count]]
                return self.model.late(self.question, self._query, texts, np.array(vectors))

            fused, late = second_look(fused[order], look) if self.options.late else (fused[order], None)
            scores = [None] * len(both) if late is None else [None if np.isnan(one) else float(one) for one in late]
            ranked = [
                replace(both[place].hit, fused=float(fused[place]), late=scores[place])
                for place in np.argsort(-fused, kind="stable").tolist()
            ]
        else:
            ranked = [each.hit for each in (self._nearest if self.mode == "dense" else [each for _, each in by_words])]
        if self.files:
            of_files: dict[str | int, Found] = {}
            for hit in ranked:
                of_files.setdefault(hit.id, hit)
            ranked = list(of_files.values())
        best = ranked[: self.options.k]
        if self.mode == "words":
            cosines = _embedded(self.model, [hit.text for hit in best]) @ self._query
            best = [replace(hit, score=float(cosine)) for hit, cosine in zip(best, cosines, strict=True)]
        elif self._unrelated is not None and self._query.any():
            # A title is embedded with the passages of a text, so its words count, too.
            titled = ["\n".join([*hit.metadata.values(), hit.text]) for hit in best]
            shares = word_shares(self.question, titled)
            best = [
                replace(hit, relevance=relevance(self._unrelated, hit.score, share, self._passages))
                for hit, share in zip(best, shares, strict=True)
            ]
        least, threshold = self.options.min_relevance, self.options.threshold
        least = DEFAULT_RELEVANCE if least is None else least
        kept = [
            hit
            for hit in best
            if (hit.relevance is None or hit.relevance >= least) and (threshold is None or hit.score >= threshold)
        ]
        self.hidden = len(best) - len(kept)
        spans = highlights([hit.text for hit in kept], [self.question], self._query[None], self.model.documents)
        # All lines of a record have the record's number.
        return [
            replace(hit, highlight=span, nearest_line=hit.nearest_line or counted(hit.line, hit.text, "\n", span[0]))
            for hit, span in zip(kept, spans, strict=True)
        ]


def _embedded(model: Model, texts: Sequence[str]) -> Vectors:
    with warnings.catch_warnings():
        # Many passages of source code have too few words that the model knows.
        warnings.simplefilter("ignore")
        return model.documents(texts)


@takes(FolderOptions, but=("documents", "id_field"))
def grep(
    question: str, paths: str | Path | Sequence[str | Path], *, encoding: str | None = None, **options: Any
) -> list[Found]:
    """Search files by meaning and by words, without an index.

    Args:
        question: what to search for.
        paths: files and folders; ``-`` is standard input.
        encoding: the encoding of plain text; None: detected.
        options: those of :class:`Search`, such as ``k`` and ``mode``, and those of
            :class:`~ctx_embed.index.following.FolderOptions` but ``documents`` and ``id_field``.

    Returns:
        The hits, best first. The ``id`` of a hit is the path of its file.

    Raises:
        InputError: an argument cannot be used, or there is no such file.

    Example:
        >>> [hit] = grep("how are passwords stored?", "docs/", k=1)
        >>> hit.id, hit.line
        ('docs/security.md', 12)
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    of_files = {name: options.pop(name) for name in vars(FolderOptions()) if name in options}
    sources = Sources(list(map(str, given)), encoding, **of_files)
    search = Search(question, **options)
    for _ in search.read(sources.texts()):
        pass
    return search.hits()
