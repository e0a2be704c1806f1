"""The steps over another module's token embeddings."""

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from torch.nn import functional as F

from ctx_embed import Contextualizer, ContextualizerPooling, load
from tests.conftest import SENTENCES
from tests.helpers.errors import error
from tests.index.support.cross_encoder import save_cross_encoder


def test_a_contextualizer_is_the_pooling_over_a_table(tokenizer):
    torch.manual_seed(0)
    options = {"steps": 2, "rank": 3, "positions": "relative", "scale": "sum", "initial_context": "uniform"}
    module = Contextualizer(tokenizer, 8, **options)
    pooling = ContextualizerPooling(8, **options)
    pooling.attention.load_state_dict(module.attention.state_dict())
    features = module.preprocess([*SENTENCES[:4], ""])
    tokens = {**features, "token_embeddings": module.embedding(features["input_ids"])}
    expected = module(features)["sentence_embedding"]
    torch.testing.assert_close(pooling(tokens)["sentence_embedding"], expected)


def test_flattened_inputs_are_padded_inputs(tokenizer):
    torch.manual_seed(0)
    pooling = ContextualizerPooling(8, steps=2, rank=3, positions="absolute")
    torch.nn.init.normal_(pooling.attention.W)
    tokens = torch.randn(2, 5, 8)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    expected = pooling({"token_embeddings": tokens, "attention_mask": mask})["sentence_embedding"]
    flat = {"token_embeddings": tokens[mask.bool()][None], "cu_seq_lens_q": torch.tensor([0, 3, 8], dtype=torch.int32)}
    torch.testing.assert_close(pooling(flat)["sentence_embedding"], expected)


def test_it_begins_as_the_normalised_mean():
    pooling = ContextualizerPooling(6, steps=1, rank=2)
    tokens = torch.randn(2, 3, 6)
    mask = torch.ones(2, 3, dtype=torch.int64)
    expected = 1 + F.layer_norm(tokens.mean(1), (6,), eps=1e-12)
    result = pooling({"token_embeddings": tokens, "attention_mask": mask})["sentence_embedding"]
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_it_sits_on_a_transformer_and_is_saved_and_loaded(tokenizer, tmp_path):
    transformer = Transformer(str(save_cross_encoder(tmp_path / "bert", tokenizer)), max_seq_length=64)
    model = SentenceTransformer(modules=[transformer, ContextualizerPooling(8, steps=2, rank=4)], device="cpu")
    torch.nn.init.normal_(model[1].attention.W, std=0.1)
    expected = model.encode(SENTENCES)
    assert expected.shape == (len(SENTENCES), 8)
    model.save_pretrained(str(tmp_path / "model"))
    for loaded in (load(tmp_path / "model"), SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True)):
        assert (loaded.encode(SENTENCES) == expected).all()


def test_wrong_features_are_one_line():
    features = {"token_embeddings": torch.zeros(1, 2, 4), "attention_mask": torch.ones(1, 2)}
    assert "token embeddings must have 8 features, got 4; set the dim" in error(ContextualizerPooling(8), features)
    seeded = ContextualizerPooling(4, initial_context="uniform")
    assert "must have input_ids, which seed initial_context='uniform'" in error(seeded, features)
