from __future__ import annotations

import json

from click.testing import CliRunner

from ctx_embed.cli.main import main
from ctx_embed.loading import load_embedder
from ctx_embed.text.tokenizer import MOST_UNKNOWN, SAMPLED_TEXTS, sample, tokenizer_of, unknown_share, warning

RUSSIAN = ["кошка сидит на окне", "цены растут"]
ENGLISH = ["the cat sits in the window", "prices rise"]
SAID = "Warning: the model does not know "


def test_the_default_model_knows_english_and_nothing_else():
    tokenizer = tokenizer_of(load_embedder(None))
    assert unknown_share(tokenizer, ENGLISH) == 0
    assert unknown_share(tokenizer, RUSSIAN) > MOST_UNKNOWN
    assert unknown_share(tokenizer, ["你好 世界"]) > MOST_UNKNOWN
    assert unknown_share(tokenizer, []) == unknown_share(None, RUSSIAN) == 0
    assert warning(0.4) == ""
    assert warning(0.996).startswith(f"{SAID}100% of the tokens")


def test_a_sample_is_spread_over_the_texts():
    texts = [str(number) for number in range(10 * SAMPLED_TEXTS)]
    assert len(sample(texts)) == SAMPLED_TEXTS
    assert int(sample(texts)[-1]) > 9 * SAMPLED_TEXTS
    assert sample(["x" * 5000]) == ["x" * 1000]


def test_encode_and_build_warn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, texts in (("ru", RUSSIAN), ("en", ENGLISH)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")
        encoded = CliRunner().invoke(main, ["encode", f"{name}.txt", "-o", "-"])
        assert len([json.loads(line) for line in encoded.stdout.splitlines()]) == 2
        built = CliRunner().invoke(main, ["index", "build", f"{name}.txt", f"{name}.index"])
        assert built.stdout == f"2 documents indexed in {name}.index\n"
        for result in (encoded, built):
            assert result.stderr.startswith(SAID) == (name == "ru")
            assert result.stderr.count("\n") == (name == "ru")
