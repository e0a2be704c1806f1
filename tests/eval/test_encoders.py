from __future__ import annotations

import re

import numpy as np
import pytest

from ctx_embed import loading
from ctx_embed.errors import InputError
from ctx_embed.eval.encoders import load_encoder
from ctx_embed.fingerprint import fingerprint


def test_a_folder(tiny_model, tiny_model_path, sentences):
    encoder = load_encoder(str(tiny_model_path))
    assert encoder.name == str(tiny_model_path)
    assert encoder.fingerprint == fingerprint(tiny_model)
    np.testing.assert_allclose(encoder.encode(sentences), tiny_model.encode(sentences), atol=1e-6)


def test_the_default(tiny_model, monkeypatch):
    monkeypatch.setattr(loading, "load", lambda path=None: tiny_model if path is None else pytest.fail(path))
    assert load_encoder("default").fingerprint == fingerprint(tiny_model)


def test_a_slip_of_the_default():
    message = (
        "unknown encoder 'defualt': did you mean 'default'? known are default, or the folder of a SentenceTransformer"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        load_encoder("defualt")


def test_no_such_folder():
    with pytest.raises(InputError, match=r"^\./models/mine: no such model folder$"):
        load_encoder("./models/mine")
