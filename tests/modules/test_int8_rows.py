import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from ctx_embed.modules import Contextualizer, token_encoder
from ctx_embed.modules.token_encoder import dequantized, quantized
from ctx_embed.numpy_model.embedder import PackedContextualizer
from ctx_embed.numpy_model.saved import TokenTable


def test_by_hand():
    table = torch.tensor([[127.0, -127.0, 1.4, -0.6], [0.0, 0.0, 0.0, 0.0], [0.5, -0.25, 0.0, 0.1]])
    levels, scales = quantized(table)
    assert levels.dtype == torch.int8
    assert scales.dtype == torch.float16
    assert levels.tolist() == [[127, -127, 1, -1], [0, 0, 0, 0], [127, -64, 0, 25]]
    torch.testing.assert_close(dequantized(levels, scales), table, atol=0.5, rtol=0)


@given(st.integers(0, 2**31), st.floats(1e-6, 100))
def test_rounding_is_near_and_once(seed, size):
    table = torch.randn(5, 7, generator=torch.Generator().manual_seed(seed)) * size
    rounded = dequantized(*quantized(table))
    half_a_level = table.abs().amax(1, keepdim=True).clamp(min=0.008) / 127 * 0.502
    assert bool(((rounded - table).abs() <= half_a_level).all())
    assert torch.equal(dequantized(*quantized(rounded)), rounded)


def test_a_table_that_int8_would_change_is_stored_as_it_is(tokenizer, tmp_path):
    module = Contextualizer(tokenizer, 4, steps=1, rank=2)
    module.save(str(tmp_path))
    assert load_file(tmp_path / "model.safetensors")["embedding.weight"].dtype == torch.float32
    module.round_table()
    module.save(str(tmp_path))
    assert load_file(tmp_path / "model.safetensors")["embedding.weight"].dtype == torch.int8
    loaded = Contextualizer.load(str(tmp_path))
    assert torch.equal(loaded.embedding.weight, module.embedding.weight)
    module.half().save(str(tmp_path))
    assert load_file(tmp_path / "model.safetensors")["embedding.weight"].dtype == torch.float16


def test_int8_rows_are_read_where_they_are_exact(tokenizer, monkeypatch):
    monkeypatch.setattr(token_encoder, "CHECKED_ROWS", 3)
    module = Contextualizer(tokenizer, 4, steps=2, rank=2).eval()
    read = module.preprocess(["a cat sat", "a dog ran"])["input_ids"].numpy().reshape(-1)
    lengths = np.array([4, 4])
    floats = module.without_torch()
    assert floats.table.scales is None
    assert np.shares_memory(floats.table.values, module.embedding.weight.detach().numpy())
    module.round_table()
    rounded = module.without_torch()
    assert rounded.table.values.dtype == np.int8
    assert np.array_equal(rounded.table.rows(slice(None)), module.embedding.weight.detach().numpy())
    parameters = {name: value.detach().numpy() for name, value in module.attention.named_parameters()}
    table = TokenTable(module.embedding.weight.detach().numpy())
    shared = PackedContextualizer(module.get_config_dict(), table, parameters)
    np.testing.assert_allclose(rounded.embed(read, lengths), shared.embed(read, lengths), rtol=1e-5, atol=1e-6)
