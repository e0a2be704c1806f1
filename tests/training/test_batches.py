import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ctx_embed.training.batches import PackedTexts, held_out, like_length_batches, numbered, seeded_batches


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=20), st.data())
def test_a_batch_is_a_slice_of_each_text(texts, data):
    flat = np.array([token for text in texts for token in text], dtype=np.int32)
    packed = PackedTexts(flat, np.cumsum([0, *map(len, texts)]))
    rows = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=30))
    ids, lengths = packed.batch(np.array(rows))
    assert ids.tolist() == [token for row in rows for token in texts[row]]
    assert lengths == [len(texts[row]) for row in rows]
    assert ids.dtype == torch.int64


@pytest.mark.parametrize(
    ("count", "batch_size", "sizes"),
    [(6, 2, [2, 2, 2]), (7, 3, [3, 4]), (8, 3, [3, 3, 2]), (1, 4, [1]), (4, 4, [4]), (5, 4, [5]), (3, 1, [1, 1, 1])],
)
def test_a_last_batch_of_one_joins_the_one_before(count, batch_size, sizes):
    assert [len(rows) for rows in seeded_batches(count, batch_size, 0, 0)] == sizes


@given(st.lists(st.integers(0, 99), min_size=1, max_size=200), st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_batches_cover_all_rows_once(lengths, batch_size, seed):
    plain = list(seeded_batches(len(lengths), batch_size, seed, 0))
    alike = list(like_length_batches(np.array(lengths), batch_size, seed, 0))
    for batches in (plain, alike):
        assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
        assert max(map(len, batches)) <= batch_size + 1
    assert sorted(map(len, alike)) == sorted(map(len, plain))


def test_the_order_is_given_by_seed_and_epoch():
    places = [(seed, epoch) for seed in range(3) for epoch in range(3)] * 2
    orders = {tuple(np.concatenate(list(seeded_batches(50, 8, seed, epoch)))) for seed, epoch in places}
    assert len(orders) == 9


def test_batches_of_like_length_are_of_neighbours_by_length_in_a_seeded_order():
    lengths = np.random.default_rng(0).permutation(40)
    batches = list(like_length_batches(lengths, 8, 0, 0))
    spans = [sorted(lengths[batch].tolist()) for batch in batches]
    assert sorted(spans) == [list(range(start, start + 8)) for start in range(0, 40, 8)]
    orders = {tuple(map(tuple, like_length_batches(lengths, 8, 0, epoch))) for epoch in range(5)}
    assert len(orders) == 5
    assert [batch.tolist() for batch in like_length_batches(lengths, 8, 0, 0)] == [batch.tolist() for batch in batches]


def test_all_copies_of_a_text_are_on_one_side():
    random = np.random.default_rng(0)
    for copies in (1, 2, 7):
        same = numbered([f"text {number % (70 // copies)}" for number in range(70)])
        order = random.permutation(70)
        apart, rest = held_out(order, same, 10)
        assert sorted([*apart, *rest]) == list(range(70))
        assert not set(same[apart]) & set(same[rest])
        assert 10 <= len(apart) < 10 + copies
        if copies == 1:
            assert apart.tolist() == order[:10].tolist()
    assert [len(part) for part in held_out(order, same, 0)] == [0, 70]
