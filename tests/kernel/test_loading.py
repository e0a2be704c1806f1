"""A process embeds by the path that it is asked for, says which it is, and gets the vectors of the equations."""

import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

from ctx_embed import kernel as loading
from ctx_embed import second_order
from ctx_embed.errors import InputError
from ctx_embed.kernel import kernel, kernel_name
from ctx_embed.runtime import Embedder

LIBRARY, REASON = loading._loaded()
HERE = [] if LIBRARY is None else [name for name, number in loading.PATHS.items() if LIBRARY.ctx_paths() >> number & 1]
TEXTS = ["", "a", "Zürich, 北京 \0 and don't!", "same " * 40]
TEXTS += [" ".join(f"word{n * k % 97} of the {k}" for k in range(n)) for n in range(1, 60)]
# Prints what embeds texts, and writes c^K of all texts at once, then of each alone, in another order.
SCRIPT = """
import json, sys
import numpy as np
from ctx_embed.kernel import kernel_name
from ctx_embed.runtime import Embedder
embedder, texts = Embedder.load(), json.load(sys.stdin)
together = embedder.encode(texts, normalize=False)
alone = [embedder.encode([text], normalize=False)[0] for text in texts[::-1]][::-1]
np.save(sys.argv[1], [together, alone])
print(kernel_name())
"""


@pytest.fixture
def anew():
    """Let this process choose again."""

    def forget() -> None:
        loading._chosen.cache_clear()
        kernel.cache_clear()

    forget()
    yield forget
    forget()


def test_every_path_agrees_with_the_equations(tmp_path):
    found = {}
    for path in ("numpy", *HERE):
        target = tmp_path / f"{path}.npy"
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(target)]
        chosen = {**os.environ, loading.VARIABLE: path}
        run = subprocess.run(
            command, env=chosen, input=json.dumps(TEXTS), stdout=subprocess.PIPE, text=True, check=True
        )
        assert run.stdout.startswith(path)
        found[path] = np.load(target)
    model = Embedder.load()
    steps = second_order.Steps(*(parameter.astype(np.float64) for parameter in model.contextualizer.steps))
    ids, lengths = model.tokens(TEXTS)
    offsets = np.append(0, lengths.cumsum())
    x = model.contextualizer.table.rows(ids).astype(np.float64)
    exact = second_order.direct(x, offsets, model.contextualizer.first_contexts(ids, lengths), steps)[-1]
    own = np.abs(found["numpy"] - exact).max((0, 2))
    for path in HERE:
        together, alone = found[path]
        assert (together == alone).all()
        assert (np.abs(together - exact).max(1) <= 8 * own + 4e-6 * np.abs(exact).max(1)).all()


@pytest.mark.parametrize("path", HERE)
def test_a_path_is_chosen_and_logged(path, anew, monkeypatch, caplog):
    monkeypatch.setenv(loading.VARIABLE, path.upper())
    with caplog.at_level(logging.INFO, "ctx_embed"):
        assert kernel().name == kernel_name() == path
        kernel()
    assert caplog.messages == [f"kernel: {path}"]


@pytest.mark.skipif(LIBRARY is None, reason=REASON)
def test_the_fastest_path_of_the_processor_is_the_default(anew, monkeypatch):
    monkeypatch.delenv(loading.VARIABLE, raising=False)
    assert kernel_name() == HERE[-1]


def test_a_path_that_does_not_exist_is_an_error(anew, monkeypatch):
    monkeypatch.setenv(loading.VARIABLE, "sse9")
    with pytest.raises(InputError, match="CTX_EMBED_KERNEL must be numpy, plain or avx2, got 'sse9'"):
        kernel()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("contextualizer.so", None, "was not built; a C compiler and `pip install` make it"),
        ("contextualizer.so", b"no library", "cannot be loaded"),
        ("contextualizer.c", b"int other;\n", "is older than contextualizer.c; build it again with `make kernel`"),
    ],
)
def test_numpy_does_the_work_of_a_library_that_cannot_be_used(
    name, content, reason, anew, monkeypatch, tmp_path, caplog
):
    if name.endswith(".c") and LIBRARY is None:
        pytest.skip(REASON)
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(loading, "SOURCE" if name.endswith(".c") else "LIBRARY", path)
    monkeypatch.delenv(loading.VARIABLE, raising=False)
    with caplog.at_level(logging.INFO, "ctx_embed"):
        assert kernel() is None
    assert kernel_name().startswith("numpy (contextualizer.")
    assert reason in kernel_name()
    assert caplog.messages == [f"kernel: {kernel_name()}"]
    for wanted in HERE:
        monkeypatch.setenv(loading.VARIABLE, wanted)
        anew()
        with pytest.raises(InputError, match=f"CTX_EMBED_KERNEL asks for {wanted}, but .*; unset it to use NumPy"):
            kernel()
