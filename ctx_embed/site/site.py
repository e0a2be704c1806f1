"""The files of an index for browsers: a manifest, the module, and pieces of vectors, texts, and lists of words.

A search fetches what it needs of each. All searches read one bit of each number of the vectors, which estimates cosines
well enough to tell which passages may be the best ones. Texts and vectors lie in the order of pages, a few passages in
a piece. The lists of the passages that have a word, and how often, are sorted by the words, so that the first word of
each piece leads to it.
"""

from __future__ import annotations

import json
import re
import shutil
from bisect import bisect
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote
from zlib import crc32

import numpy as np

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_folder, require_replaceable
from ctx_embed.index import hits, words as by_words
from ctx_embed.index.search import DEPTH
from ctx_embed.index.vectors import DTYPES, Vectors
from ctx_embed.reading import blocks
from ctx_embed.reading.decoding import read_text
from ctx_embed.site.model import MODULE, add_model, require_readable
from ctx_embed.site.pieces import Pieces, varint

if TYPE_CHECKING:
    from ctx_embed.index import SearchIndex
    from ctx_embed.index.database import Passage
    from ctx_embed.index.folder import View

FORMAT, MANIFEST = 1, "manifest.json"
# Passages in a piece, at most; and bytes in a piece of lists of words before it is compressed, at least.
PASSAGES, WORD_BYTES = 8, 4096
# What a browser computes with, from where the library has it.
CONSTANTS = {
    "k1": by_words.K1,
    "b": by_words.B,
    "leastWeight": by_words.LEAST_WEIGHT,
    "mostWords": by_words.MOST_WORDS,
    "large": by_words.LARGE,
    "commonPart": by_words.COMMON_PART,
    "functionWords": sorted(by_words.FUNCTION_WORDS),
    "depth": DEPTH,
    "relevance": [hits.DEVIATIONS, hits.WORDS, hits.PASSAGES, hits.BASE],
    "relevant": hits.DEFAULT_RELEVANCE,
    "endings": hits._ENDINGS,
    "leastStem": hits._LEAST_STEM,
    "mostEnding": hits._MOST_ENDING,
}


class Exported(NamedTuple):
    """What was written: passages, files and their bytes."""

    passages: int
    files: int
    bytes: int


class _Anchors(HTMLParser):
    """Collects the headings of a page, each with its id, or one inside it, or one between it and the text before."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: dict[str, list[tuple[str, str]]] = {}
        self._before, self._heading, self._id = "", "", ""
        self._text, self._is_link = [""], False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = dict(attrs)
        own = fields.get("id") or (fields.get("name") if tag == "a" else "") or ""
        if re.fullmatch("h[1-6]", tag):
            self._heading, self._id, self._text = tag, own or self._before, []
        elif self._heading:
            self._id, self._is_link = self._id or own, tag == "a" or self._is_link
        elif tag in ("section", "div", "article"):
            self._before = own or self._before
        else:
            self._before = (self._before or own) if tag in ("a", "span") else ""

    def handle_data(self, data: str) -> None:
        # A sign that links to its heading is none of its words.
        if not self._is_link or re.search(r"\w", data):
            self._text.append(data)
        if not data.isspace():
            self._before = ""

    def handle_endtag(self, tag: str) -> None:
        self._is_link = self._is_link and tag != "a"
        if tag == self._heading:
            shown = " ".join("".join(self._text).split())
            self.headings.setdefault(_key(shown), []).append((shown, self._id))
            self._heading, self._is_link = "", False


def anchors(page: str) -> dict[str, list[tuple[str, str]]]:
    """Return the headings of an HTML page and their ids, or empty strings, by their letters and digits, in order."""
    parser = _Anchors()
    parser.feed(page)
    return parser.headings


def _key(heading: str) -> str:
    return re.sub(r"[\W_]", "", heading)


def _passages(
    index: SearchIndex, passages: list[Passage], vectors: Vectors
) -> tuple[list[tuple[bytes, ...]], list[int]]:
    """Return pieces of texts, with pages, headings and anchors, and of vectors, and the first passage of each piece."""
    codes = DTYPES["int8"].encode(vectors)
    pieces: list[tuple[bytes, ...]] = []
    firsts: list[int] = []
    number = 0
    piece: list[Any] = []

    def close() -> None:
        head = json.dumps(piece, ensure_ascii=False).encode()
        pieces.append((varint(len(head)) + head, codes[number - len(piece) : number].tobytes()))
        firsts.append(number - len(piece))
        piece.clear()

    for _, of_document in groupby(passages, lambda passage: passage.document.row):
        some = list(of_document)
        fields = some[0].document.metadata
        source, address = fields.get("source"), fields.get("url")
        if not isinstance(address, str):
            if not isinstance(source, str):
                raise InputError(
                    "a document has neither of the fields 'source' and 'url', so hits cannot lead to it; index a "
                    "folder of HTML, or give each document a url"
                )
            address = quote(source)
        location = index.source(some[0].document.id)
        path = None if location is None else location.path
        is_html = path is not None and path.suffix.lower() in (".html", ".htm", ".xhtml")
        ids_of_page = {key: iter(ids) for key, ids in anchors(read_text(str(path))).items()} if is_html else {}
        title = str(fields.get("title") or source or address)
        # A piece ends where the address says, so that it stays the same when other pages come or go.
        if piece and crc32(address.encode()) % 4 == 0:
            close()
        # Where the headings of the document start, and each with its id in the page; none above the first one.
        text = some[0].document.text
        starts, headings = [], [("", "")]
        for block in blocks.markdown(text):
            if blocks.SECTION <= block.depth < blocks.NONE:
                written = text[block.start : block.stop]
                # In Markdown, a heading is a line that begins with signs, or has them below.
                plain = written.strip("# ") if written.lstrip().startswith("#") else written.rpartition("\n")[0]
                shown = re.sub(r"\*\*|`", "", plain).strip(), ""
                if heading := next(ids_of_page.get(_key(plain), iter(())), None) if is_html else shown:
                    starts.append(block.start)
                    headings.append(heading)
        above = [0, *starts]
        for passage in some:
            if len(piece) == PASSAGES:
                close()
            # The heading above the passage, and those within it.
            first, last = bisect(starts, passage.start), bisect(starts, passage.start + len(passage.text) - 1)
            offsets = [max(start - passage.start, 0) for start in above[first : last + 1]]
            places = [[offset, *heading] for offset, heading in zip(offsets, headings[first : last + 1], strict=True)]
            piece.append([address, title, places, passage.text])
            number += 1
    if piece:
        close()
    return pieces, firsts


def _words(view: View, rows: np.ndarray[Any, Any]) -> tuple[list[tuple[bytes, ...]], list[str], np.ndarray[Any, Any]]:
    """Return pieces of words with their passages, the first word of each piece, and the words in each passage (n,)."""
    by_words.with_vocabulary(view.store, "tokens", "instance")
    select = "SELECT CAST(term AS BLOB), doc, count(*) FROM temp.tokens GROUP BY term, doc ORDER BY term, doc"
    places = {row: place for place, row in enumerate(rows.tolist())}
    lengths = np.zeros(len(rows), np.uint32)
    pieces: list[tuple[bytes, ...]] = []
    firsts: list[str] = []
    names: list[str] = []
    lists, counts = bytearray(), bytearray()

    def close() -> None:
        head = "\n".join(names).encode()
        pieces.append((varint(len(head)) + head, bytes(lists), bytes(counts)))
        firsts.append(names[0])
        for part in (names, lists, counts):
            part.clear()

    for term, occurrences in groupby(view.store.run(select), lambda row: row[0]):
        having = [(places[row], count) for _, row, count in occurrences if row in places]
        if not having:
            continue
        names.append(term.decode("utf-8", "ignore"))
        lists += varint(len(having))
        before = 0
        for place, count in having:
            lists += varint(place - before)
            counts += varint(count)
            lengths[place] += count
            before = place
        if len(lists) + len(counts) > WORD_BYTES:
            close()
    if names:
        close()
    return pieces, firsts, lengths


def export_site(index: SearchIndex, output: Path) -> Exported:
    """Write the search of an index into a folder of a static site, in place of an earlier one.

    Raises:
        InputError: browsers cannot run the model, a document has no address, or the folder holds other things.
    """
    embedder = require_readable(index.embedder.backend)
    require_replaceable(output, MANIFEST)

    def read(view: View) -> Any:
        rows = view.rows[view.live]
        passages = list(view.store.fetch(rows.tolist()).values())
        return passages, view.vectors.get(rows), *_words(view, rows), view.settings.unrelated

    passages, vectors, words, first_words, lengths, unrelated = index._folder.read(read)
    texts, first_passages = _passages(index, passages, vectors)
    # What estimates cosines: the mean vector, which numbers of each vector are above it, and by how much.
    mean = (vectors.sum(0) / max(len(vectors), 1)).astype(np.float32)
    above = vectors - mean
    arrays = [lengths, mean, np.packbits(above > 0, axis=1)]
    facts = {
        "count": len(passages),
        "average": float(lengths.sum() / max(len(passages), 1)) or 1.0,
        "unrelated": unrelated,
        "apart": float(np.abs(above).sum() / max(above.size, 1)),
        "passages": first_passages,
        "words": first_words,
    }
    head = json.dumps(facts, ensure_ascii=False).encode()
    with replaced_folder(output) as folder:
        pieces = Pieces(folder, output)
        manifest = {
            "format": FORMAT,
            "model": add_model(pieces, embedder),
            "constants": CONSTANTS,
            "pieces": {
                "index": pieces.add(varint(len(head)) + head + b"".join(array.tobytes() for array in arrays)),
                "passages": pieces.add_list(texts),
                "words": pieces.add_list(words),
            },
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, ensure_ascii=False), encoding="utf-8")
        for path in MODULE.glob("*.js"):
            shutil.copyfile(path, folder / path.name)
        files = [path for path in folder.rglob("*") if path.is_file()]
        return Exported(len(passages), len(files), sum(path.stat().st_size for path in files))
