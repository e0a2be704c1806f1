from __future__ import annotations

from ctx_embed.texts import BATCH_CHARACTERS, BATCH_TEXTS, length_batches, well_formed


def test_well_formed():
    assert well_formed("a\ud800b\udfff") == "a\ufffdb\ufffd"
    assert well_formed("\ud83d\ude00") == "😀"
    text = "nothing to do 😀 \0"
    assert well_formed(text) is text


def test_batches_hold_every_text_once_within_their_bounds():
    texts = ["x" * length for length in [5, BATCH_CHARACTERS * 2, 0, *range(600), BATCH_CHARACTERS // 3]]
    found = list(length_batches(texts))
    assert sorted(place for batch in found for place in batch) == list(range(len(texts)))
    for batch in found:
        padded = len(batch) * max(len(texts[place]) for place in batch)
        assert len(batch) <= BATCH_TEXTS
        assert padded <= BATCH_CHARACTERS or len(batch) == 1
    assert list(length_batches([])) == []
