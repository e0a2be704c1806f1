import os
from contextlib import nullcontext

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from ctx_embed import load
from ctx_embed.errors import InputError
from ctx_embed.training.distillation.teacher import TeacherCache, seen_in_part
from ctx_embed.training.distillation.texts import Block
from tests.helpers.errors import error


@pytest.fixture
def teacher(tiny_model_path):
    return load(tiny_model_path, "cpu")


@pytest.fixture
def blocks(sentences):
    return [Block(tuple(sentences[:3])), Block(tuple(sentences[3:7])), Block(tuple(sentences[7:]))]


@pytest.fixture
def asked(monkeypatch) -> list[list[str]]:
    """The texts of each call of a teacher's encode."""
    calls: list[list[str]] = []
    encode = SentenceTransformer.encode

    def counted(self, texts, **options):
        calls.append(list(texts))
        return encode(self, texts, **options)

    monkeypatch.setattr(SentenceTransformer, "encode", counted)
    return calls


def embeddings(folder, teacher, blocks):
    return TeacherCache(folder, teacher).embeddings(blocks, progress=False)


def test_embeddings_are_in_the_order_of_the_blocks_and_computed_once(tmp_path, teacher, blocks, sentences, asked):
    expected = teacher.encode(sentences, normalize_embeddings=True).astype(np.float16)
    del asked[:]
    got = embeddings(tmp_path / "new" / "cache", teacher, blocks)
    assert got.dtype == np.float16
    assert np.array_equal(got, expected)
    assert asked == [list(block.texts) for block in blocks]
    more = Block(("one more sentence",))
    assert np.array_equal(embeddings(tmp_path / "new" / "cache", teacher, [blocks[2], more])[:1], got[-1:])
    assert asked[3:] == [["one more sentence"]]


@pytest.mark.parametrize("damage", [b"garbage", "cut", "other"])
def test_a_damaged_shard_is_computed_again(tmp_path, teacher, blocks, asked, damage):
    whole = embeddings(tmp_path, teacher, blocks)
    cache = TeacherCache(tmp_path, teacher)
    path, other = (cache.folder / f"{block.key}.safetensors" for block in (blocks[1], blocks[0]))
    contents = {"cut": path.read_bytes()[:-1], "other": other.read_bytes()}
    path.write_bytes(contents[damage] if isinstance(damage, str) else damage)
    del asked[:]
    assert np.array_equal(embeddings(tmp_path, teacher, blocks), whole)
    assert asked == [list(blocks[1].texts)]
    assert len(list(cache.folder.iterdir())) == 3
    assert np.array_equal(embeddings(tmp_path, teacher, blocks), whole)
    assert len(asked) == 1


def test_teachers_do_not_share(tmp_path, tiny_model_path, teacher, blocks, asked):
    others = [load(tiny_model_path, dtype="bfloat16"), load(tiny_model_path, truncate_dim=4), load(tiny_model_path)]
    others.append(load(tiny_model_path, prompts={"query": "the "}, default_prompt_name="query"))
    others[2].max_seq_length = 5
    for model in (teacher, *others):
        with pytest.warns(UserWarning, match="were cut") if model.max_seq_length == 5 else nullcontext():
            embeddings(tmp_path, model, blocks)
    assert len(asked) == 5 * 3
    assert len(os.listdir(tmp_path)) == 5
    (tmp_path / "file").write_text("x")
    message = error(TeacherCache, tmp_path / "file", teacher)
    assert message.startswith(f"cannot make the cache folder {tmp_path / 'file'}/")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "must be finite numbers, got NaN or infinity for 3 of 3 texts, such as '"),
        (0.0, "must not all be zeros, got zeros for all 8 texts; choose a teacher that knows their language"),
    ],
)
def test_embeddings_that_teach_nothing_are_refused_and_not_stored(
    tmp_path, teacher, blocks, monkeypatch, value, message
):
    encode = TeacherCache.encode
    monkeypatch.setattr(TeacherCache, "encode", lambda self, texts: np.full((len(texts), 8), value, np.float32))
    with pytest.raises(InputError, match=message):
        embeddings(tmp_path, teacher, blocks)
    monkeypatch.setattr(TeacherCache, "encode", encode)
    if np.isnan(value):
        assert embeddings(tmp_path, teacher, blocks).any()


def test_texts_that_a_teacher_reads_in_part_are_counted(teacher, monkeypatch):
    texts = ["the cat", "the cat sat on the mat", "x" * 30, *["the cat sat on the mat " * 9] * 3]
    assert seen_in_part(teacher, texts) == 0
    teacher[0].max_seq_length = 20
    assert seen_in_part(teacher, texts[:2]) == 0
    assert seen_in_part(teacher, texts[3:]) == 3
    monkeypatch.setattr("ctx_embed.training.distillation.teacher.SAMPLED_TEXTS", 1)
    assert seen_in_part(teacher, texts[3:]) == 3
