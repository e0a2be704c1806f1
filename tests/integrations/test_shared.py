from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ctx_embed import InputError
from ctx_embed.integrations.shared import shared_model


def test_one_model_for_all_who_name_it(tiny_model_path):
    with ThreadPoolExecutor(4) as threads:
        models = set(threads.map(shared_model, [str(tiny_model_path)] * 8))
    assert len(models) == 1


def test_a_model_itself_is_refused(tiny_model):
    with pytest.raises(InputError, match="model must be a name or a path, such as 'default', got SentenceTransformer"):
        shared_model(tiny_model)
