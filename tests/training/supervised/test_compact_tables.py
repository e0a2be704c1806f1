from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from ctx_embed.modules import Contextualizer
from ctx_embed.systems import system
from ctx_embed.training.supervised.compact_tables import compact_tables


def model(tokenizer, name, **options) -> SentenceTransformer:
    torch.manual_seed(0)
    return SentenceTransformer(modules=[system(name)(tokenizer, 8, **options), Normalize()], device="cpu")


@pytest.mark.parametrize("name", ["contextualizer", "mean"])
def test_the_table_is_cut_to_the_texts_and_put_back(tokenizer, sentences, name):
    encoder = model(tokenizer, name)
    before, embeddings = encoder[0].embedding.weight.clone(), encoder.encode(sentences)
    used = np.unique(encoder[0].text_tokenizer(sentences[:2])[0])
    with compact_tables(encoder, sentences[:2]):
        assert encoder[0].embedding.weight.shape == (len(used), 8)
        assert encoder.encode(sentences[:2]) == pytest.approx(embeddings[:2], abs=1e-6)
        with torch.no_grad():
            encoder[0].embedding.weight += 1
    changed = (encoder[0].embedding.weight != before).any(1).nonzero().flatten().tolist()
    assert changed == used.tolist()
    torch.testing.assert_close(encoder[0].embedding.weight[used], before[used] + 1)
    assert encoder[0].text_tokenizer(sentences)[0].max() > len(used)


def test_the_table_is_put_back_after_an_error(tokenizer, sentences):
    encoder = model(tokenizer, "mean")
    with pytest.raises(KeyboardInterrupt), compact_tables(encoder, sentences[:1]):
        raise KeyboardInterrupt
    assert len(encoder[0].embedding.weight) == tokenizer.get_vocab_size()


def test_a_context_drawn_by_ids_keeps_them(tokenizer, sentences):
    encoder = model(tokenizer, "contextualizer", initial_context="uniform")
    assert isinstance(encoder[0], Contextualizer)
    with compact_tables(encoder, sentences[:1]):
        assert len(encoder[0].embedding.weight) == tokenizer.get_vocab_size()


def test_texts_without_a_token(tokenizer):
    encoder = model(tokenizer, "mean")
    with compact_tables(encoder, [""]):
        assert len(encoder[0].embedding.weight) == tokenizer.get_vocab_size()
