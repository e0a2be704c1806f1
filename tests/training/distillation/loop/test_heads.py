from __future__ import annotations

import numpy as np
import torch

from ctx_embed.training.distillation.loop import heads
from ctx_embed.training.distillation.loop.heads import LabelHead, WordHead


def test_the_label_head_reads_directions_alone():
    torch.manual_seed(0)
    head = LabelHead(4, 3)
    embeddings, targets = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    torch.testing.assert_close(head(embeddings), head(7 * embeddings))
    expected = -head(embeddings).log_softmax(1)[torch.arange(5), targets].mean()
    torch.testing.assert_close(head.loss(embeddings, targets), expected)


def test_the_label_head_reads_the_last_dimensions_alone():
    torch.manual_seed(0)
    head, embeddings = LabelHead(2, 3), torch.randn(5, 4)
    torch.testing.assert_close(head(embeddings), head(torch.cat([torch.zeros(5, 2), 3 * embeddings[:, 2:]], dim=1)))


def test_the_word_head_names_frequent_words(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(heads, "WORDS", 2)
    head = WordHead(4, np.array([1, 9, 5, 7]))  # entries 1 and 3, in this order
    embeddings = torch.randn(3, 4)
    log_softmax = head.linear(torch.nn.functional.normalize(embeddings, dim=1) * 2).log_softmax(1)
    # Texts [1, 3, 0], [0, 2], [3, 3]: the second has no frequent word and does not count.
    loss = head.loss(embeddings, torch.tensor([1, 3, 0, 0, 2, 3, 3]), [3, 2, 2])
    expected = -((log_softmax[0, 0] + log_softmax[0, 1]) / 2 + log_softmax[2, 1]) / 2
    torch.testing.assert_close(loss, expected)
    assert head.loss(embeddings[:1], torch.tensor([0]), [1]) == 0
