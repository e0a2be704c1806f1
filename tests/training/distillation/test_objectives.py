from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ctx_embed.training.batches import PackedTexts
from ctx_embed.training.distillation.objectives import (
    Batch,
    Genres,
    Neighbours,
    ranking_loss,
    relation_loss,
    similarity_loss,
)


def test_similarity_and_relations_by_hand():
    student = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    target = torch.tensor([[3.0, 0.0], [1.0, 0.0]])
    teacher = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    # Cosines 1 and 0: distance 1/2. S = I, S_teacher = ones: two of four squares are 1.
    assert similarity_loss(student, target).item() == 0.5
    assert relation_loss(student, teacher).item() == 0.5
    assert relation_loss(teacher, teacher).item() == 0


def test_ranking_by_hand():
    teacher = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), dim=1)
    assert ranking_loss(3 * teacher, teacher).item() == pytest.approx(0, abs=1e-6)
    student = torch.eye(3)  # every other text is as near: 1/2 each
    cosines = (teacher @ teacher.T / 0.05).numpy()
    expected = 0.0
    for row in range(3):
        others = np.delete(cosines[row], row)
        shares = np.exp(others) / np.exp(others).sum()
        expected += float((shares * np.log(shares / 0.5)).sum()) / 3
    assert ranking_loss(student, teacher).item() == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def batch() -> Batch:
    empty = torch.zeros(0)
    return Batch(0, np.array([2, 0, 3]), empty, [], empty, empty)


def test_neighbours_are_told_from_others(batch):
    texts = PackedTexts(np.arange(6, dtype=np.int32), np.array([0, 2, 3, 4, 6]))
    neighbours = Neighbours(texts, np.array([1, 2, 3, -1]), count=2)
    ids, lengths = neighbours.more_texts(batch)
    assert (ids.tolist(), lengths) == ([4, 5, 2], [2, 1])  # texts 3 and 1
    student = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    right, wrong = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    expected = np.log(1 + np.exp(-1 / 0.07))
    assert neighbours.loss(batch, student, right).item() == pytest.approx(expected, abs=1e-6)
    assert neighbours.loss(batch, student, wrong).item() == pytest.approx(1 / 0.07 + expected, rel=1e-5)


def test_a_batch_without_a_neighbour(batch):
    neighbours = Neighbours(PackedTexts(np.zeros(0, np.int32), np.zeros(5, int)), np.full(4, -1), count=2)
    ids, lengths = neighbours.more_texts(batch)
    assert (len(ids), lengths) == (0, [])
    assert neighbours.loss(batch, torch.ones(3, 2), torch.zeros(0, 2)) == 0


def test_genres_are_those_of_the_rows(batch):
    torch.manual_seed(0)
    genres = Genres(2, np.array([0, 1, 1, 2]))
    student = torch.randn(3, 2)
    expected = F.cross_entropy(genres.head(student), torch.tensor([1, 0, 2]))
    assert genres.loss(batch, student, student) == expected
