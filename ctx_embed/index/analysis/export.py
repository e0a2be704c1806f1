"""Export of all vectors and passages of an index, as .npy and JSONL files."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np

from ctx_embed.files import replaced_file, require_file, require_folder
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.view import View

ROWS_AT_ONCE = 2048


def export_index(folder: IndexFolder, output: Path) -> int:
    """Write vectors and passages, see :meth:`SearchIndex.export`."""
    require_folder(output)
    vectors_path, texts_path = (output.with_name(output.name + suffix) for suffix in (".npy", ".jsonl"))
    require_file(vectors_path)
    require_file(texts_path)

    def write(view: View) -> int:
        count = view.count
        with (
            replaced_file(vectors_path) as vectors,
            replaced_file(texts_path) as texts,
            vectors.open("wb") as array,
            texts.open("w", encoding="utf-8") as lines,
        ):
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, folder.settings.dimension)}
            np.lib.format.write_array_header_1_0(array, header)
            passages = folder.passages()
            while part := list(islice(passages, ROWS_AT_ONCE)):
                rows = np.array([row for row, _ in part])
                array.write(view.vectors.get(rows).astype("<f4").tobytes())
                lines.writelines(json.dumps(passage, ensure_ascii=False) + "\n" for _, passage in part)
        return count

    return folder.read(write)
