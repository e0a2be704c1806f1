"""Deduplication of files: keep the first text of each group of near-duplicates, in about 200 bytes of memory a row.

Called by ``ctx-embed dedupe``. Texts are stored and compared first; then the rows are copied, unchanged.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import sys
import tempfile
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, UnknownTextsWarning, examples
from ctx_embed.files import replaced_file, require_file, require_other_file, temporary_files
from ctx_embed.index.vectors import Rows
from ctx_embed.progress import Meter
from ctx_embed.reading.formats import FORMATS, JSON, LABELLED, PARQUET, SPREADSHEET, TEXT, TSV
from ctx_embed.reading.opening import opened, suffix_of
from ctx_embed.reading.rows import Fields, Named, estimated_count, read_documents, titled
from ctx_embed.reading.sources import Report, find_sources
from ctx_embed.reading.tables import Cells, Table, kind_of, open_parquet, open_rows
from ctx_embed.text.normalisation import Translation, normalised
from ctx_embed.texts import well_formed
from ctx_embed.writing import cells_writer

if TYPE_CHECKING:
    from ctx_embed.model import Given

__all__ = ["Deduplicated", "dedupe"]

# Two texts with similarity s share a band with probability 1 - (1 - s^5)^50: 0.98 for s = 0.6, and below 1e-6 for
# two unrelated sentences.
BANDS, BAND_SIZE = 50, 5
# Length of a sequence in bytes, at most 8. Two unrelated megabytes of English share .30 of their sequences; with
# four bytes they share .64.
GRAM = 6
# Punctuation that says something, unlike commas and brackets.
_SYMBOLS = "#%&@*/\\\u2030\u2031"
_MINUS = re.compile(r"(?<![\w)\].])[-\u2012\u2013](?=[.,]?\d)")
_POINT = re.compile(r"(?<=\d)[.,:](?=\d)")
# Characters for private use that replace the points within numbers, which are not punctuation.
_PRIVATE = 0xE000
_NUMBER = re.compile("\u2212?\\d+(?:[\ue000-\ue07f/]\\d+)*")
_WITHOUT_PUNCTUATION = Translation(
    lambda character: " " if unicodedata.category(character)[0] == "P" and character not in _SYMBOLS else character
)


def normalized(text: str) -> str:
    """Return a text in lower case, with accents and symbols but without punctuation, and with single spaces.

    Minus signs and the points within numbers stay. A text of punctuation alone loses only its outer spaces.
    """
    read = normalised(text).casefold()
    read = _POINT.sub(lambda found: chr(_PRIVATE + ord(found[0])), _MINUS.sub("\u2212", read))
    return " ".join(read.translate(_WITHOUT_PUNCTUATION).split()) or text.strip()


def hash_of(text: str) -> int:
    """Return 64 bits of a text's BLAKE2 hash as a signed integer."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def grams(plain: str) -> NDArray[np.uint64]:
    """Return the distinct sequences of six consecutive bytes in a normalised text, as sorted numbers."""
    content = f" {plain} ".encode().ljust(GRAM)
    count = len(content) - GRAM + 1
    # Read eight bytes at each place; the mask below drops the last two, which do not belong to the sequence.
    eights = np.ndarray((count,), "<u8", content + bytes(8 - GRAM), strides=(1,))
    return np.unique(eights & np.uint64((1 << 8 * GRAM) - 1))


def similarity(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Return the Jaccard similarity of two sets of :func:`grams`."""
    common = len(np.intersect1d(left, right, assume_unique=True))
    return common / (len(left) + len(right) - common)


def band_keys(plain: Sequence[str]) -> Iterator[NDArray[np.uint32]]:
    """Yield the texts' keys (texts,) for each band: a key combines the minima of five hashes over the text's sequences.

    The probability that two texts have the same minimum of a hash is their Jaccard similarity (Broder 1997).
    """
    sets = [grams(text) for text in plain]
    starts = np.cumsum([0, *map(len, sets[:-1])])
    codes = (np.concatenate(sets) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)
    # The finalizer of MurmurHash3 spreads the codes evenly, as the hashes below need.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        codes ^= codes >> np.uint32(shift)
        codes *= np.uint32(factor)
    codes ^= codes >> np.uint32(16)
    hashes = np.empty_like(codes)
    for numbers in np.random.default_rng(0).integers(0, 2**32, (BANDS, BAND_SIZE, 2), np.uint32):
        key = np.zeros(len(plain), np.uint32)
        for factor, offset in numbers:
            np.multiply(codes, factor | np.uint32(1), out=hashes)
            np.add(hashes, offset, out=hashes)
            key = (key ^ np.minimum.reduceat(hashes, starts)) * np.uint32(0x9E3779B1)
            key ^= key >> np.uint32(15)
        yield key


# Earlier rows, later rows and their similarities, each (n,).
Pairs: TypeAlias = tuple[Rows, Rows, NDArray[np.float64]]

THRESHOLD = 0.6
# Up to this many embeddings are all compared with each other. With more, each is compared only with those in a few
# inverted lists, which is enough to find neighbours as close as duplicates.
EXACT_ROWS, PROBED_LISTS = 20_000, 12
ROWS_AT_ONCE = 1024
TEXTS_AT_ONCE = 4096
# In each band, a text is compared with the first text that has the same key, and with this many of the latest.
COMPARED = 16
# Number of neighbours to look for first, and at most.
NEIGHBOURS, MOST_NEIGHBOURS = 32, 2048
# The largest difference between a cosine of 8-bit vectors and the exact one.
ROUNDING = 0.02


@dataclass(frozen=True)
class Deduplicated:
    """The numbers of rows read and kept, of kept rows that have duplicates, and of texts that the model cannot read.

    ``report`` says which files of folders were left out.
    """

    rows: int
    kept: int
    groups: int
    unknown: int = 0
    report: Report = field(default_factory=Report, repr=False)


class StoredTexts:
    """The texts of all rows. Texts and the keys of their bands are in files of a folder."""

    def __init__(self, folder: Path, file: BinaryIO, progress: bool) -> None:
        self.folder, self.progress = folder, progress
        # For each row: the first row with the same normalised text, and a hash of its numbers.
        self.equal: Rows = np.empty(0, np.int64)
        self.digits: Rows = np.empty(0, np.int64)
        # The first row of each distinct normalised text.
        self.distinct: Rows = np.empty(0, np.int64)
        # The rows of texts that the model cannot read.
        self.unread: list[int] = []
        self._ends: Rows = np.empty(0, np.int64)
        self._file = file

    def read(self, texts: Iterable[str], files: Sequence[str]) -> None:
        """Store texts, which come from ``files``, and the band keys of each distinct text."""
        equal, digits, lengths = [], [], []
        first_of: dict[int, int] = {}
        stream = iter(texts)
        row = 0
        with ExitStack() as stack:
            expected = estimated_count(files) if self.progress else None
            meter = stack.enter_context(Meter("reading", expected, "rows", shown=self.progress))
            bands = [stack.enter_context((self.folder / f"band-{number}").open("wb")) for number in range(BANDS)]
            while block := [well_formed(text) for text in islice(stream, TEXTS_AT_ONCE)]:
                contents = [text.encode() for text in block]
                self._file.write(b"".join(contents))
                plain = [normalized(text) for text in block]
                first = [first_of.setdefault(hash_of(text), place) for place, text in enumerate(plain, row)]
                new = [text for place, text in enumerate(plain, row) if first[place - row] == place]
                for band, keys in zip(bands, band_keys(new), strict=True) if new else ():
                    band.write(keys.tobytes())
                equal.append(np.array(first, np.int64))
                digits.append(np.array([hash_of(" ".join(_NUMBER.findall(text))) for text in plain], np.int64))
                lengths.append(np.array([len(content) for content in contents], np.int64))
                row += len(block)
                meter.update(len(block))
        if row:
            self.equal, self.digits = np.concatenate(equal), np.concatenate(digits)
            self._ends = np.cumsum(np.concatenate(lengths))
            self.distinct = np.flatnonzero(self.equal == np.arange(row))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.equal)

    def __getitem__(self, row: int) -> str:
        """Return the text of a row."""
        start = int(self._ends[row - 1]) if row else 0
        self._file.seek(start)
        return self._file.read(int(self._ends[row]) - start).decode()

    def candidates(self, band: int) -> Iterator[tuple[Rows, Rows]]:
        """Yield earlier rows (n,) and later rows (n,): pairs of distinct texts with the same key in a band."""
        keys = np.fromfile(self.folder / f"band-{band}", np.uint32)
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        rows = self.distinct[order]
        for distance in range(1, COMPARED + 1):
            later = np.flatnonzero(ordered[distance:] == ordered[:-distance]) + distance
            if not len(later):
                return
            yield rows[later - distance], rows[later]
        first = np.searchsorted(ordered, ordered[later])
        beyond = later - first > COMPARED
        yield rows[first[beyond]], rows[later[beyond]]


def dedupe(
    sources: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    groups: str | Path | None = None,
    text_field: Named = None,
    threshold: float = THRESHOLD,
    meaning: float | None = None,
    model: Given = None,
    encoding: str | None = None,
    progress: bool = False,
) -> Deduplicated:
    """Write the rows of files without near-duplicates, in their order and format.

    Two texts are near-duplicates if they are equal apart from case, punctuation and spaces; or if they have the same
    numbers and

    - the Jaccard similarity of their sets of six consecutive bytes reaches ``threshold``, unless that is 1,
    - or the cosine of their embeddings reaches ``meaning``, if that is given.

    A row is dropped if it is a near-duplicate of an earlier row that is kept. So the first row of a group is kept, and
    every dropped row resembles a kept one. Files are written whole or not at all.

    If the model cannot read a text, because most of its words are unknown, only the characters are compared:
    its embedding is zero.

    MinHash signatures in bands give candidate pairs, which are then compared exactly. They find 98 % of the pairs with
    similarity 0.6, and more of the closer pairs. Each row takes about 200 bytes of memory, and with ``meaning`` one
    more for each dimension of the model; texts, signatures and embeddings are stored in temporary files.

    Args:
        sources: files of one format (text, JSONL, CSV, TSV or Parquet, plain or gzip), folders of them, or ``-`` for
            standard input. Blank lines of text are left out.
        output: the file to write, compressed if its name ends in ``.gz``; ``-`` is standard output.
        groups: a JSONL file to write, with one line for each kept row that has near-duplicates: the numbers of these
            rows (counted from 1 over all sources), their texts, and the similarity of each dropped row to the kept one.
        text_field: the field with the text, or several; None: ``text``, or the whole line of a text file.
        threshold: above 0 and at most 1; 1 drops only equal texts, as above.
        meaning: above 0 and at most 1, e.g. 0.95; None compares characters only.
        model: the model for embeddings, as for :meth:`ctx_embed.SearchIndex.create`.
        encoding: the encoding of the files; None: UTF-8, or detected. Text is written as UTF-8.
        progress: whether to show progress on standard error, if that is a terminal.

    Raises:
        InputError: a threshold is out of range, or a file cannot be read or written.
    """
    for name, value in (("threshold", threshold), ("meaning", meaning)):
        if value is not None and not 0 < value <= 1:
            raise InputError(f"{name} must be above 0 and at most 1, got {value}")
    report = Report()
    listed = [sources] if isinstance(sources, str | Path) else list(sources)
    named = [source.name for source in find_sources(listed, report)]
    outputs = [Path(path) for path in (output, groups) if path is not None and str(path) != "-"]
    for path in outputs:
        require_file(path)
        for source in named:
            require_other_file(path, source)
    if len({path.absolute() for path in outputs}) < len(outputs):
        raise InputError(f"cannot write {output}: it is named both for the rows and for their groups")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ctx-embed-")))
        copied = folder / "input"
        if "-" in named:
            # Standard input can be read only once.
            with temporary_files(), opened("-") as stream, copied.open("wb") as copy:
                shutil.copyfileobj(stream, copy)
        files = [str(copied) if source == "-" else source for source in named]
        fields = titled(text_field)
        form = common_form(files, Path(output), fields, encoding)
        texts = StoredTexts(folder, stack.enter_context((folder / "texts").open("w+b")), progress)
        documents = (document for file in files for document in read_documents(file, fields, encoding=encoding))
        with temporary_files():
            texts.read((document.text for document in documents), files)
        if not len(texts):
            raise InputError(f"{', '.join(map(str, named))}: no texts")
        found = list(_near_characters(texts, threshold)) if threshold < 1 else []
        if meaning is not None:
            found += _near_embeddings(texts, meaning, model)
        if texts.unread:
            said = f"{len(texts.unread):,} text{'s' * (len(texts.unread) > 1)}"
            said += f" ({examples((texts[row] for row in texts.unread), len(texts.unread))})"
            report.remarks.append(f"the model knows too few words of {said}, so only their characters were compared")
        # For each row, the kept row that it resembles (itself if it is kept), and their similarity.
        leaders, similarities = np.arange(len(texts)), np.ones(len(texts))
        if found:
            left, right, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
            # Pairs are sorted by their later row, so it is already decided whether the earlier row of each is kept.
            order = np.lexsort((-scores, left, right))
            pairs = zip(left[order].tolist(), right[order].tolist(), scores[order].tolist(), strict=True)
            for earlier, later, score in pairs:
                if leaders[earlier] == earlier and leaders[later] == later:
                    leaders[later], similarities[later] = earlier, score
        leaders, similarities = leaders[texts.equal], similarities[texts.equal]
        kept = leaders == np.arange(len(texts))
        file: BinaryIO
        if str(output) == "-":
            file = sys.stdout.buffer
        else:
            file = stack.enter_context(stack.enter_context(replaced_file(output)).open("wb"))
        packed = str(output).lower().endswith(".gz")
        copy_rows(files, form, iter(kept.tolist()), file, packed=packed, encoding=encoding)
        file.flush()
        if groups is not None:
            dropped = np.flatnonzero(~kept)
            dropped = dropped[np.argsort(leaders[dropped], kind="stable")]
            with replaced_file(groups) as beside, beside.open("w", encoding="utf-8") as lines:
                for members in np.split(dropped, np.flatnonzero(np.diff(leaders[dropped])) + 1):
                    if not len(members):
                        continue
                    first = int(leaders[members[0]])
                    group = {
                        "kept": {"row": first + 1, "text": texts[first]},
                        "dropped": [
                            {"row": row + 1, "text": texts[row], "similarity": round(float(similarities[row]), 4)}
                            for row in members.tolist()
                        ],
                    }
                    lines.write(json.dumps(group, ensure_ascii=False) + "\n")
    return Deduplicated(len(texts), int(kept.sum()), len(np.unique(leaders[~kept])), len(texts.unread), report)


def _near_characters(texts: StoredTexts, threshold: float) -> Iterator[Pairs]:
    """Yield pairs of distinct texts with the same numbers and similar sequences of characters."""
    seen: Rows = np.empty(0, np.int64)
    with Meter("comparing", BANDS, "bands", shown=texts.progress) as meter:
        for band in range(BANDS):
            keys = [seen[:0]]
            for left, right in texts.candidates(band):
                possible = texts.digits[left] == texts.digits[right]
                keys.append(left[possible] * len(texts) + right[possible])
            new = np.setdiff1d(np.concatenate(keys), seen)
            seen = np.union1d(seen, new)
            left, right = new // len(texts), new % len(texts)
            scores = np.zeros(len(new))
            row, of_left = -1, np.empty(0, np.uint64)
            # The pairs are sorted by their earlier row.
            for place, (earlier, later) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
                if earlier != row:
                    row, of_left = earlier, grams(normalized(texts[earlier]))
                scores[place] = similarity(of_left, grams(normalized(texts[later])))
            near = scores >= threshold
            yield left[near], right[near], scores[near]
            meter.update()


def _near_embeddings(texts: StoredTexts, meaning: float, model: Given) -> Iterator[Pairs]:
    """Yield the pairs of distinct texts with the same numbers whose embeddings have a high cosine."""
    import faiss

    from ctx_embed.model import Model

    embedder = Model.of(model)
    embedded: list[Rows] = [texts.distinct[:0]]
    path, count = texts.folder / "vectors", len(texts.distinct)
    with temporary_files(), path.open("wb") as file, Meter("embedding", count, "rows", shown=texts.progress) as meter:
        for first in range(0, count, TEXTS_AT_ONCE):
            block = texts.distinct[first : first + TEXTS_AT_ONCE]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnknownTextsWarning)
                vectors = embedder.documents([texts[row] for row in block.tolist()])
            # Texts that the model cannot read have zero embeddings; the result counts them.
            known = vectors.any(axis=1)
            file.write(vectors[known].astype(np.float16).data)
            embedded.append(block[known])
            meter.update(len(block))
    compared = np.concatenate(embedded)
    count = len(compared)
    texts.unread = np.setdiff1d(texts.distinct, compared).tolist()
    if not count:
        return
    stored = np.memmap(path, np.float16, "r", shape=(count, embedder.dimension))
    # Only texts with the same numbers are compared.
    digits = texts.digits[compared]
    order = np.argsort(digits, kind="stable")
    digits = digits[order]
    edges = np.flatnonzero(np.diff(digits, prepend=~digits[:1], append=~digits[-1:]))
    several = np.flatnonzero(np.diff(edges) > 1)
    total = int(np.diff(edges)[several].sum())
    with Meter("comparing", total, "rows", shown=texts.progress) as meter:
        for group in several.tolist():
            rows = order[edges[group] : edges[group + 1]]
            lists = 1 if len(rows) <= EXACT_ROWS else 2 ** round(np.log2(len(rows) ** 0.5))
            index: Any = faiss.index_factory(embedder.dimension, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
            index.nprobe = PROBED_LISTS
            # Suppress FAISS's warning of too few texts.
            index.cp.min_points_per_centroid = 1
            index.train(stored[rows[:: max(1, len(rows) // max(64 * lists, 10_000))]].astype(np.float32))
            for first in range(0, len(rows), ROWS_AT_ONCE):
                vectors = stored[rows[first : first + ROWS_AT_ONCE]].astype(np.float32)
                places = np.arange(first, first + len(vectors))
                # Each row is compared with all earlier ones.
                index.add(vectors)
                found: list[tuple[Rows, Rows]] = []
                waiting, neighbours = np.arange(len(vectors)), NEIGHBOURS
                while len(waiting):
                    scores, near = index.search(vectors[waiting], min(neighbours, index.ntotal))
                    # A row may be nearly equal to more rows than were asked for.
                    full = (scores[:, -1] >= meaning - ROUNDING) & (neighbours < min(MOST_NEIGHBOURS, index.ntotal))
                    at, columns = np.nonzero((scores >= meaning - ROUNDING) & (near >= 0) & ~full[:, None])
                    found.append((near[at, columns], places[waiting[at]]))
                    waiting, neighbours = waiting[full], 4 * neighbours
                left, right = (np.concatenate(parts) for parts in zip(*found, strict=True))
                left, right = left[left < right], right[left < right]
                ours = vectors[right - first]
                cosines = np.einsum("nm,nm->n", stored[rows[left]], ours, dtype=np.float64).clip(-1, 1)
                near_enough = cosines >= meaning
                yield compared[rows[left]][near_enough], compared[rows[right]][near_enough], cosines[near_enough]
                meter.update(len(vectors))


# Copies of the rows that are kept


def common_form(files: Sequence[str], output: Path, fields: Fields, encoding: str | None) -> Table:
    """Return a table in the common format of some files; in TSV with quoted cells if one of them has some.

    An InputError says that there is no common format, or that the output's name does not suit it.
    """
    forms: dict[str, Table] = {}
    for file in files:
        with open_rows(file, needed=fields.needed, encoding=encoding) as table:
            form = forms.setdefault(table.kind, table)
            if isinstance(form, Cells) and isinstance(table, Cells):
                form.quoted = form.quoted or table.quoted
    if len(forms) > 1:
        one, other, *_ = forms.values()
        raise InputError(f"all files must have one format, got {one.kind} ({one.name}) and {other.kind} ({other.name})")
    ((kind, form),) = forms.items()
    if kind == SPREADSHEET:
        raise InputError(f"{files[0]}: dedupe writes the format that it reads, but no spreadsheets; save it as CSV")
    written = (TEXT, TSV) if kind == LABELLED else (kind,)
    if str(output) == "-":
        if kind == PARQUET:
            raise InputError("Parquet cannot be written to standard output; name a file")
    elif suffix_of(output) != ".json" if kind == JSON else kind_of(output) not in written:
        # A name in .json stands for an array and for lines alike; we write an array.
        suffixes = [suffix for suffix, known in FORMATS.items() if known.rows == written[0] and suffix != ".json"]
        suffixes = [".json"] if kind == JSON else suffixes
        wanted = f"end in {' or '.join(suffixes)}" if suffixes else "be that of a text file, e.g. end in .txt"
        raise InputError(f"cannot write {output}: the rows stay in the format of the input, so its name must {wanted}")
    return form


def copy_rows(
    files: Sequence[str], form: Table, chosen: Iterator[bool], output: IO[bytes], *, packed: bool, encoding: str | None
) -> None:
    """Write the chosen rows of files of one format, unchanged; text becomes UTF-8. If ``packed``, write gzip."""
    changed = InputError(f"{', '.join(files)}: changed while it was read; run this again")
    try:
        if form.kind == PARQUET:
            import pyarrow
            from pyarrow import parquet

            writer: Any = None
            for path in files:
                with opened(path) as stream, open_parquet(path, stream) as table:
                    schema = table.schema_arrow
                    if writer is None:
                        writer = parquet.ParquetWriter(output, schema)
                    elif not schema.equals(writer.schema):
                        names = writer.schema.names
                        raise InputError(f"{path}: all tables must have the columns of the first, {names}")
                    for batch in table.iter_batches():
                        mask = pyarrow.array([next(chosen) for _ in range(batch.num_rows)], pyarrow.bool_())
                        writer.write_batch(batch.filter(mask))
            if writer is not None:
                writer.close()
        else:
            # The gzip header has no name or time, so that equal rows give equal files.
            zipped = gzip.GzipFile("", "wb", 6, output, 0) if packed else nullcontext(output)
            with zipped as file:
                text = io.TextIOWrapper(cast("IO[bytes]", file), encoding="utf-8", errors="replace", newline="")
                _copy_text(files, form, chosen, text, encoding)
                text.detach()
    except StopIteration:
        raise changed from None
    if next(chosen, None) is not None:
        raise changed


def _copy_text(
    files: Sequence[str], form: Table, chosen: Iterator[bool], output: IO[str], encoding: str | None
) -> None:
    write = cells_writer(output, form.delimiter, form.quoted) if isinstance(form, Cells) else None
    header: list[str] | None = None
    between = "[\n"
    for file in files:
        with open_rows(file, kind=form.kind, typed=False, encoding=encoding) as table:
            for number, raw in table.raw:
                if isinstance(raw, InputError):
                    raise InputError(f"{table.where(number)}: {raw}")
                if isinstance(raw, str):
                    if raw.strip() and next(chosen):
                        output.write(f"{raw}\n")
                    continue
                if write and isinstance(table, Cells) and table.header != header:
                    if header is not None:
                        raise InputError(f"{file}: all tables must have the columns of the first, {', '.join(header)}")
                    header = table.header
                    if header:
                        write(header)
                if not next(chosen):
                    continue
                if write and isinstance(raw, list):
                    write(raw)
                else:
                    output.write(f"{between}{json.dumps(raw, ensure_ascii=False)}")
                    between = ",\n"
    if form.kind == JSON:
        output.write("\n]\n")
