"""What the tests of commands share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ctx_embed.classify import predictor
from ctx_embed.numpy_model import saved


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """Work in an empty folder without data, so that whatever a command leaves is seen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CTX_EMBED_DATA", raising=False)
    return tmp_path


@pytest.fixture
def default_model(tiny_model_path, monkeypatch) -> Iterator[Path]:
    """Use the tiny model instead of the shipped one, which classifiers of one process share."""
    predictor._shipped.cache_clear()
    monkeypatch.setattr(saved, "DEFAULT_MODEL", tiny_model_path)
    yield tiny_model_path
    predictor._shipped.cache_clear()
