"""Temporary storage of the texts to deduplicate and of their signatures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ctx_embed.deduplication.signatures import BANDS, band_keys, hash_of, hash_of_digits, normalized
from ctx_embed.progress import Meter
from ctx_embed.rows.reading import estimated_count
from ctx_embed.texts import well_formed

Rows: TypeAlias = NDArray[np.int64]

TEXTS_AT_ONCE = 4096
# In each band, a text is compared with the first text of the same key, and with this many of the last ones before it.
COMPARED = 16


class StoredTexts:
    """The texts of all rows. Texts and the keys of their bands are on disk. A row takes about 200 bytes of memory.

    Args:
        folder: the folder of temporary files.
        progress: whether to show progress on standard error, if that is a terminal.
    """

    def __init__(self, folder: Path, progress: bool) -> None:
        self.folder = folder
        self.progress = progress
        # For each row: the first row with the same normalised text, and a hash of its numbers.
        self.equal: Rows = np.empty(0, np.int64)
        self.digits: Rows = np.empty(0, np.int64)
        # The first row of each distinct normalised text.
        self.distinct: Rows = np.empty(0, np.int64)
        # Number of texts that the model cannot read.
        self.unknown = 0
        self._ends: Rows = np.empty(0, np.int64)
        self._file: BinaryIO = (folder / "texts").open("w+b")

    def __enter__(self) -> StoredTexts:
        """Return the texts."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self._file.close()

    def meter(self, total: int | None, what: str, unit: str = "rows") -> Meter:
        """Return the progress meter of a step."""
        return Meter(what, total, unit, shown=self.progress)

    def read(self, texts: Iterable[str], files: Sequence[str]) -> None:
        """Store texts, which come from ``files``, and the keys of each distinct one."""
        equal, digits, lengths = [], [], []
        first_of: dict[int, int] = {}
        stream = iter(texts)
        row = 0
        with ExitStack() as stack:
            meter = stack.enter_context(self.meter(estimated_count(files) if self.progress else None, "reading"))
            bands = [stack.enter_context(self._band(number).open("wb")) for number in range(BANDS)]
            while block := [well_formed(text) for text in islice(stream, TEXTS_AT_ONCE)]:
                contents = [text.encode() for text in block]
                self._file.write(b"".join(contents))
                plain = [normalized(text) for text in block]
                first = [first_of.setdefault(hash_of(text), place) for place, text in enumerate(plain, row)]
                new = [text for place, text in enumerate(plain, row) if first[place - row] == place]
                for band, keys in zip(bands, band_keys(new), strict=True) if new else ():
                    band.write(keys.tobytes())
                equal.append(np.array(first, np.int64))
                digits.append(np.array([hash_of_digits(text) for text in plain], np.int64))
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

    def _band(self, number: int) -> Path:
        return self.folder / f"band-{number}"

    def candidates(self, band: int) -> Iterator[tuple[Rows, Rows]]:
        """Yield earlier rows (n,) and later rows (n,): pairs of distinct texts with the same key in a band."""
        keys = np.fromfile(self._band(band), np.uint32)
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
