"""The model that ships: that it is whole, small, and reads all of a text, alike in any batch and by any form."""

import json

import numpy as np

from ctx_embed.loading import DEFAULT_MODEL


def test_it_fits_into_the_package_and_says_how_it_was_made():
    assert sum(file.stat().st_size for file in DEFAULT_MODEL.rglob("*") if file.is_file()) <= 40e6
    assert not list(DEFAULT_MODEL.rglob("*.bin"))
    record = json.loads((DEFAULT_MODEL / "training.json").read_text(encoding="utf-8"))
    assert record["texts"] >= 250_000
    assert record["options"]["seed"] is not None
    hashes = [digest for source in record["sources"] for digest in source["files"].values()]
    assert hashes
    assert all(len(digest) == 64 for digest in [*hashes, *record["labelled"].values()])
    assert "Licence" in (DEFAULT_MODEL / "README.md").read_text(encoding="utf-8")


def test_its_entries_are_words_and_phrases(shipped_model):
    module, text = shipped_model[0], "I don't know, said one of the men."
    assert len(module.phrases) > 10_000
    ids = module.preprocess([text])["input_ids"][0].tolist()
    assert len(ids) < len(module.backend_tokenizer.encode(text).ids)
    assert module.entry_texts()[ids[0]] == "i don ' t know"


def test_it_reads_all_of_a_long_text(shipped_model, paragraphs):
    words = " ".join(paragraphs).split()
    text, other = words[:10_000], words[10_000:11_000]
    variants = [[*text[: i * 1000], *other, *text[(i + 1) * 1000 :]] for i in range(10)]
    whole, *changed = shipped_model.encode([" ".join(text), *(" ".join(variant) for variant in variants)])
    moved = np.linalg.norm(changed - whole, axis=1)
    assert moved.min() > 1e-3
    assert moved.min() >= np.median(moved) / 5


def test_related_texts_are_nearer(shipped_model):
    texts = [
        "A man is playing a guitar on the street.",
        "Someone makes music outside with a string instrument.",
        "The central bank raised interest rates again.",
        "Borrowing money became more expensive after the bank's decision.",
    ]
    similarity = shipped_model.similarity(shipped_model.encode(texts), shipped_model.encode(texts)).numpy()
    assert similarity[0, 1] > similarity[0, 2:].max() + 0.2
    assert similarity[2, 3] > similarity[2, :2].max() + 0.2
