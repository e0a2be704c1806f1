"""How far the vectors of one text differ between batches, orders, threads and backends.

python benchmarks/agreement.py [--model MODEL] [--json FILE]

The texts are odd ones, such as scripts that the model cannot read, lone surrogates and a word of 5,000 letters, and
docstrings of Python's standard library, some joined to long texts.
"""

from __future__ import annotations

import ast
import json
import random
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

import ctx_embed
from ctx_embed.export.onnx import MODEL, export
from ctx_embed.runtime import Embedder

ODD = [
    *("", " \n\t ", "a", "[UNK] [PAD]", "\ud800 lone", "null\x00byte", "\x0b\x1c\x85 odd spaces", "x" * 5000),
    *(
        "日本語のテキスト",
        "кошка сидит на окне",
        "שלום עולם",
        "مرحبا بالعالم",
        "नमस्ते दुनिया",
        "สวัสดีชาวโลก",
        "안녕하세요",
    ),
    *("😀😡👩‍👩‍👧", "e\u0301te\u0301", "of the of the of the in the of the", "9" * 300, "<a href='x'>&amp;</a>" * 50),
]
FIRST = "torch, batches of 32"


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (found := ast.get_docstring(node)):
                yield found


def nasty_texts() -> list[str]:
    """Return the texts, in a random order that is always the same."""
    found = list(dict.fromkeys(docstrings()))
    texts = ODD + found[:2000] + [" ".join(found[:200]), " ".join(found)]
    random.Random(0).shuffle(texts)
    return texts


def by_onnx(embedder: Embedder, texts: list[str]) -> Any:
    """Return the vectors by the exported graph."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        export(embedder, Path(folder) / "onnx")
        session = onnxruntime.InferenceSession(str(Path(folder) / "onnx" / MODEL), providers=["CPUExecutionProvider"])
    found = []
    for start in range(0, len(texts), 32):
        ids, lengths = embedder.text_tokenizer(texts[start : start + 32])
        offsets = lengths.cumsum() - lengths
        found.append(session.run(None, {"input_ids": ids.astype(np.int64), "offsets": offsets})[0])
    return np.concatenate(found)


def ways(model: str | None) -> Iterator[tuple[str, Any]]:
    """Yield each way to embed the texts, and its vectors in the order of the texts."""
    import torch

    texts = nasty_texts()
    order = np.random.default_rng(0).permutation(len(texts))
    mixed = [texts[place] for place in order]
    encoder, embedder = ctx_embed.load(model, device="cpu"), Embedder.load(model or ctx_embed.path())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield FIRST, encoder.encode(texts)
    yield "the same again", encoder.encode(texts)
    yield "torch, one text at a time", encoder.encode(texts, batch_size=1)
    yield "torch, batches of 512", encoder.encode(texts, batch_size=512)
    yield "torch, another order", encoder.encode(mixed)[order.argsort()]
    torch.set_num_threads(max(2, threads))
    yield "torch, two threads or more", encoder.encode(texts)
    torch.set_num_threads(threads)
    yield "NumPy", embedder.encode(texts)
    yield "NumPy, one text at a time", np.stack([embedder.encode(text) for text in texts])
    yield "NumPy, another order", embedder.encode(mixed)[order.argsort()]
    yield "ONNX", by_onnx(embedder, texts)
    yield "torch, bfloat16", ctx_embed.load(model, device="cpu", dtype="bfloat16").encode(texts)


@click.command()
@click.option("--model", help="A model folder; the default model if absent.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the differences to this file.")
def main(model: str | None, output: Path | None) -> None:
    """Print a row for each way: the largest difference from the first way, and the share of equal vectors."""
    first, rows = None, {}
    print(f"| way ({len(nasty_texts()):,} texts) | largest difference of a component | lowest cosine | equal vectors |")
    print("|---|---|---|---|")
    for name, found in ways(model):
        first = found if first is None else first
        lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(found, axis=1)
        rows[name] = {
            "difference": float(np.abs(found - first).max()),
            "cosine": float(((first * found).sum(axis=1)[lengths > 0] / lengths[lengths > 0]).min()),
            "equal": float((found == first).all(axis=1).mean()),
        }
        row = rows[name]
        print(f"| {name} | {row['difference']:.1e} | {row['cosine']:.6f} | {100 * row['equal']:.0f} % |", flush=True)
    if output:
        output.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
