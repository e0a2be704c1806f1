"""A model of the system mean is what model2vec and StaticEmbedding load."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from ctx_embed.systems import system
from tests.conftest import SENTENCES, make_model
from tests.helpers.cli import Command

model2vec = pytest.importorskip("model2vec")


COMMAND = Command("export static")


@pytest.mark.parametrize("modules", [[], [Normalize()]])
def test_both_load_it(tokenizer, tmp_path, modules):
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[system("mean")(tokenizer, 8), *modules], device="cpu")
    model.save_pretrained(str(tmp_path / "mean"))
    COMMAND.succeeds(tmp_path / "mean", "-o", tmp_path / "static")
    texts = [*SENTENCES, "gardens, houses!"]
    expected = model.encode(texts)
    static = model2vec.StaticModel.from_pretrained(tmp_path / "static")
    # It leaves unknown tokens out, of which the last text has some.
    np.testing.assert_allclose(static.encode(SENTENCES), expected[:-1], atol=1e-6)
    other = SentenceTransformer(str(tmp_path / "static"), device="cpu")
    np.testing.assert_allclose(other.encode(texts), expected, atol=1e-6)


def test_others_are_refused(tokenizer, tmp_path):
    make_model(tokenizer).save_pretrained(str(tmp_path / "steps"))
    pairs = np.array([[5, 6]])
    model = SentenceTransformer(modules=[system("mean")(tokenizer, 8, phrases=pairs)], device="cpu")
    model.save_pretrained(str(tmp_path / "phrases"))
    for name, message in (("steps", "the model must be of the system mean"), ("phrases", "the model has phrases")):
        assert COMMAND.fails(tmp_path / name, "-o", tmp_path / "out").startswith(message)
        assert not (tmp_path / "out").exists()
