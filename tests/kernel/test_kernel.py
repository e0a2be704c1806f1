"""The kernel computes what the equations say on every path, and a process runs the path that it is asked for."""

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from ctx_embed import kernel as loading, second_order
from ctx_embed.kernel import kernel, kernel_name
from ctx_embed.numpy_model import embedder
from ctx_embed.numpy_model.embedder import PackedContextualizer
from ctx_embed.numpy_model.saved import TokenTable
from ctx_embed.second_order import INITIAL_CONTEXTS, POSITIONS, SCALES, Steps
from tests.helpers.errors import error

LIBRARY, REASON = loading._chosen("")
PATHS = [] if LIBRARY is None else [name for name, bit in loading.PATHS.items() if LIBRARY.ctx_paths() >> bit & 1]
ENTRIES = 700


class Model:
    """A randomly initialised model, its equations in any precision, and the kernel's form of it."""

    def __init__(self, seed: int, m: int, u: int, K: int, options: tuple[str, str, str], *, int8: bool = True) -> None:
        self.generator = random = np.random.default_rng(seed)
        self.positions, self.scale, self.initial_context = options
        self.config = dict(zip(("positions", "scale", "initial_context"), options, strict=True))
        self.config |= {"dimension": m, "rank": u, "steps": K}
        self.scales = random.uniform(0.001, 0.01, ENTRIES).astype(np.float32) if int8 else None
        self.values = random.integers(-127, 128, (ENTRIES, m)).astype(np.int8)
        self.values[:3] = 0
        if not int8:
            self.values = random.normal(size=(ENTRIES, m)).astype(np.float32)
        draw = lambda *shape: (random.normal(size=shape) * shape[-1] ** -0.5).astype(np.float32)  # noqa: E731
        ones = np.ones((K, m), np.float32)
        self.steps = Steps(draw(K, u, m), draw(K, u, m), draw(K, m, u), ones + draw(K, m), ones, draw(K, m))
        self.s = random.normal(size=m).astype(np.float32) * np.float32(0.2)
        self.c0 = ones[0] if options[2] == "ones" else random.normal(size=m).astype(np.float32)

    def compiled(self, path: str, held: int = embedder.HELD_BYTES) -> PackedContextualizer:
        parameters: dict[str, Any] = {**self.steps._asdict(), "s": self.s, "c0": self.c0}
        kernel, _ = loading._chosen(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(embedder, "HELD_BYTES", held)
            patch.setattr(embedder, "kernel", lambda: kernel)
            return PackedContextualizer(self.config, TokenTable(self.values, self.scales), parameters)

    def first(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        contexts = second_order.initial_context(self.initial_context, self.c0, ids, np.append(0, lengths.cumsum()))
        return np.array(contexts, np.float32, order="C")

    def by_equations(self, ids: np.ndarray, lengths: np.ndarray, dtype: Any, rounding: float = 0) -> np.ndarray:
        offsets = np.append(0, lengths.cumsum())
        x = self.values[ids].astype(dtype) * (1 if self.scales is None else self.scales[ids, None].astype(dtype))
        s, contexts = self.s.astype(dtype), self.first(ids, lengths).astype(dtype)
        weights = second_order.position_weights(offsets, s, kind=self.positions, scale=self.scale).astype(dtype)
        steps = Steps(*(parameter.astype(dtype) for parameter in self.steps))
        weights = weights * (1 + rounding * self.generator.normal(size=x.shape))
        return second_order.direct((x * weights).astype(dtype), offsets, contexts, steps)[-1]

    def texts(self, lengths: list[int], entries: int) -> tuple[np.ndarray, np.ndarray]:
        ids = self.generator.integers(0, entries, sum(lengths)).astype(np.int32)
        return ids, np.array(lengths, np.int64)


options = st.tuples(*map(st.sampled_from, (sorted(POSITIONS), SCALES, sorted(INITIAL_CONTEXTS))))
every_path = pytest.mark.parametrize("path", PATHS)
seeds = st.integers(0, 1000)
lengths = st.lists(st.sampled_from([0, 1, 2, 3, 7, 20, 127, 128, 129, 260, 600]), min_size=1, max_size=6)


@settings(max_examples=120)
@given(
    seed=seeds,
    m=st.sampled_from([1, 2, 3, 15, 16, 17, 40, 96]),
    u=st.sampled_from([1, 4, 5, 16, 33, 100]),
    K=st.integers(1, 4),
    options=options,
    int8=st.booleans(),
    lengths=lengths,
    entries=st.sampled_from([1, 2, 60, ENTRIES]),
)
# Two features that are nearly equal: the rounding of their mean must not stay in both.
@example(2, 2, 16, 2, ("relative", "mean", "uniform"), True, [2], 60)
@example(148, 2, 100, 1, ("none", "sum", "learned"), False, [3, 7, 7], 60)
@pytest.mark.parametrize("path", [*PATHS, "numpy"])
def test_each_path_agrees_with_the_equations(path, seed, m, u, K, options, int8, lengths, entries):
    model = Model(seed, m, u, K, options, int8=int8)
    ids, counts = model.texts(lengths, entries)
    exact = model.by_equations(ids, counts, np.float64)
    own = np.abs(model.by_equations(ids, counts, np.float32) - exact).max(1)
    # With few features a sum near 0, which LayerNorm divides by, may turn a last digit into a large difference.
    for _ in range(3):
        own = np.maximum(own, np.abs(model.by_equations(ids, counts, np.float64, 2**-23) - exact).max(1))
    found = np.abs(model.compiled(path).embed(ids, counts) - exact).max(1)
    # Eight times NumPy's error in float32, or what is hardly more than the last digit.
    assert (found <= 8 * own + 4e-6 * np.abs(exact).max(1)).all()


@settings(max_examples=25)
@given(seed=seeds, options=options, lengths=lengths, m=st.sampled_from([5, 16, 40]))
@every_path
def test_a_context_depends_on_the_text_alone(path, seed, options, lengths, m):
    model = Model(seed, m, 12, 3, options)
    ids, counts = model.texts(lengths * 3, ENTRIES)
    together = model.compiled(path).embed(ids, counts)
    parts = np.split(ids, counts.cumsum()[:-1])[::-1]
    for held in (embedder.HELD_BYTES, 0, 30 * 4 * 16 * 4):
        with ThreadPoolExecutor(4) as pool:
            alone = list(pool.map(model.compiled(path, held).embed, parts, counts[::-1, None]))
        assert (np.concatenate(alone)[::-1] == together).all()


@settings(max_examples=60)
@given(
    seed=seeds,
    m=st.sampled_from([1, 3, 16, 17, 40, 96]),
    part=st.sampled_from([0.3, 1]),
    tokens=st.sampled_from([1, 3, 4, 9]),
    int8=st.booleans(),
    lengths=lengths,
    entries=st.sampled_from([1, 5, 60, ENTRIES]),
)
@pytest.mark.parametrize("path", [*PATHS, "numpy"])
def test_the_nearest_tokens_are_those_of_the_equations(path, seed, m, part, tokens, int8, lengths, entries):
    model, kept = Model(seed, m, 4, 1, ("none", "mean", "ones"), int8=int8), max(1, int(m * part))
    # The last passage repeats the first one, whose tokens are its own.
    ids, counts = model.texts(lengths, entries)
    ids, counts = np.append(ids, ids[: counts[0]]), np.append(counts, counts[0])
    draw = model.generator.normal(size=(tokens + len(counts), kept))
    units = (draw / np.linalg.norm(draw, axis=1, keepdims=True)).astype(np.float32)
    queries, contexts = units[:tokens], units[tokens:] / np.float32(2)
    contexts[-1] = contexts[0]
    # The query has tokens that no passage has, and one twice.
    query = np.append(model.generator.integers(0, ENTRIES, tokens), ids)[-tokens:].astype(np.int32)
    query[0] = query[-1]
    best, places, having = model.compiled(path).nearest_tokens(query, queries, ids, counts, contexts)
    passages = np.split(ids, counts.cumsum()[:-1])
    assert having.tolist() == [sum(token in own for own in passages) for token in query]
    rows = model.values[ids, :kept].astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    for number, own in enumerate(np.split(rows, counts.cumsum()[:-1])):
        if not len(own):
            assert (best[number] == -1).all()
            assert (places[number] == -1).all()
            continue
        moved = own + contexts[number]
        # A row that is the opposite of its context leaves hardly a direction.
        moved /= np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-12)
        cosines = moved @ queries.T.astype(np.float64)
        assert np.abs(best[number] - cosines.max(0)).max() < 2e-6
        assert np.abs(cosines[places[number], np.arange(tokens)] - cosines.max(0)).max() < 4e-6
    assert (best[-1] == best[0]).all()


@settings(max_examples=40)
@given(
    seed=seeds,
    m=st.sampled_from([15, 16, 17, 40, 96]),
    u=st.sampled_from([1, 5, 16, 33]),
    K=st.integers(1, 3),
    options=options,
    int8=st.booleans(),
    length=st.integers(1, 40),
)
@every_path
def test_tokens_add_to_the_context_what_the_equations_say(path, seed, m, u, K, options, int8, length):
    model = Model(seed, m, u, K, options, int8=int8)
    ids, _ = model.texts([length], ENTRIES)
    exact = model.compiled(path).contributions(ids)[0].sum(0)
    own = np.abs(model.compiled("numpy").added_by_tokens(ids) - exact).max()
    found = np.abs(model.compiled(path).added_by_tokens(ids) - exact).max()
    assert found <= 8 * own + 8e-6 * np.abs(exact).max()


@every_path
@pytest.mark.parametrize("kind", sorted(POSITIONS))
def test_200_000_tokens(path, kind):
    for m, u in ((40, 8), (16, 100)):
        model = Model(1, m, u, 2, (kind, "mean", "learned"), int8=False)
        ids, counts = model.texts([200_000], ENTRIES)
        exact = model.by_equations(ids, counts, np.float64)
        found = model.compiled(path).embed(ids, counts)
        assert np.abs(found - exact).max() <= 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize("path", [*PATHS, "numpy"])
def test_counts_stand_for_repetitions_in_blocks_too(path, monkeypatch):
    monkeypatch.setattr(embedder, "BLOCK_TOKENS", 100)
    ids, counts = np.arange(300, dtype=np.int32), np.random.default_rng(0).integers(1, 9, 300)
    compiled = Model(2, 40, 9, 3, ("none", "sum", "ones")).compiled(path)
    repeated = compiled.embed(np.repeat(ids, counts).astype(np.int32), np.array([counts.sum()]))
    found = compiled.embed(ids, np.array([300]), counts)
    np.testing.assert_allclose(found, repeated, rtol=0, atol=1e-5 if path == "numpy" else 0)
    rows = np.ones((1, 40), np.float32)
    for token in (-1, ENTRIES):
        with pytest.raises(IndexError):
            compiled.nearest_tokens(np.array([3]), rows, np.array([token]), np.array([1]), rows)


@every_path
def test_huge_values_become_infinite_and_nothing_else(path):
    model = Model(3, 16, 4, 2, ("none", "mean", "ones"), int8=False)
    model.values[5] = 3e38
    found = model.compiled(path).embed(np.array([5, 6, 7, 8], np.int32), np.array([2, 2]))
    assert not np.isfinite(found[0]).all()
    assert (found[1] == model.compiled(path).embed(np.array([7, 8], np.int32), np.array([2]))[0]).all()


# The choice of a path


@pytest.fixture
def anew():
    """Let this process choose again."""
    loading._here.cache_clear()
    yield loading._here.cache_clear
    loading._here.cache_clear()


@every_path
def test_a_path_is_chosen_and_logged_and_the_fastest_is_the_default(path, anew, monkeypatch, caplog):
    monkeypatch.setenv(loading.VARIABLE, path.upper())
    with caplog.at_level(logging.INFO, "ctx_embed"):
        assert kernel().name == kernel_name() == path
        kernel()
        monkeypatch.delenv(loading.VARIABLE)
        anew()
        assert kernel_name() == PATHS[-1]
    assert caplog.messages == [f"kernel: {path}", f"kernel: {PATHS[-1]}"]
    monkeypatch.setenv(loading.VARIABLE, "sse9")
    anew()
    assert error(kernel) == "CTX_EMBED_KERNEL must be numpy, plain or avx2, got 'sse9'"


# Loads altered copies of the library one after the other: SIGBUS or SIGSEGV would end this process.
ALTERED = """
import random, sys
from pathlib import Path
from ctx_embed import kernel
whole, path, drawn = kernel.LIBRARY.read_bytes(), Path(sys.argv[1]), random.Random(0)
size, pages = len(whole), range(4096, len(whole), 4096)
altered = [whole[:length] for length in (0, 1, 7, 8, 9, size // 2, size - 9, size - 8, size - 1, *pages)]
for place in drawn.sample(range(size), 200):
    altered.append(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1:])
altered += [whole + b"\\n", whole[:-8] + b"0" * 8, whole[:8192] + bytes(4096) + whole[12288:], bytes(size)]
kernel.LIBRARY = path
for content in altered:
    path.write_bytes(content)
    found, reason = kernel._chosen("")
    assert found is None and "cannot be loaded (it is not as it was built" in reason, reason
path.unlink()
path.write_bytes(whole)
print(len(altered), kernel._chosen("")[1])
"""


def test_an_altered_library_is_never_loaded(tmp_path):
    if LIBRARY is None:
        pytest.skip(REASON)
    command = [sys.executable, "-c", ALTERED, str(tmp_path / loading.LIBRARY.name)]
    count, name = subprocess.check_output(command, text=True).split()
    assert (int(count) > 200, name) == (True, PATHS[-1])


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("LIBRARY", None, "was not built; a C compiler and `pip install` make it"),
        ("LIBRARY", b"no library", "cannot be loaded"),
        ("SOURCE", b"int other;\n", "is older than contextualizer.c; build it again with `make kernel`"),
    ],
)
def test_numpy_does_the_work_of_a_library_that_cannot_be_used(name, content, reason, anew, monkeypatch, tmp_path):
    if name == "SOURCE" and LIBRARY is None:
        pytest.skip(REASON)
    path = tmp_path / getattr(loading, name).name
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(loading, name, path)
    monkeypatch.delenv(loading.VARIABLE, raising=False)
    assert kernel() is None
    assert kernel_name().startswith("numpy (contextualizer.")
    assert reason in kernel_name()
    for wanted in PATHS:
        monkeypatch.setenv(loading.VARIABLE, wanted)
        anew()
        said = error(kernel)
        assert said.startswith(f"CTX_EMBED_KERNEL asks for {wanted}, but contextualizer.")
        assert said.endswith("; unset it to use NumPy")
