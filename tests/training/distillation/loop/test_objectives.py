from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ctx_embed.training.distillation.loop.objectives import (
    Batch,
    Genres,
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


@pytest.fixture
def batch() -> Batch:
    empty = torch.zeros(0)
    return Batch(0, np.array([2, 0, 3]), empty, [], empty, empty)


def test_genres_are_those_of_the_rows(batch):
    torch.manual_seed(0)
    genres = Genres(2, np.array([0, 1, 1, 2]))
    student = torch.randn(3, 2)
    expected = F.cross_entropy(genres.head(student), torch.tensor([1, 0, 2]))
    assert genres.loss(batch, student, student) == expected
