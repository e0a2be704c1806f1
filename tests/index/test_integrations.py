"""The examples for LangChain and LlamaIndex, if these are installed (the extra `integrations`)."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.parametrize(
    ("script", "package", "first"),
    [
        ("langchain_search.py", "langchain_core", "a 1 the cat sat on the mat"),
        ("llama_index_search.py", "llama_index", "pets 1.000 The cat sat on the mat."),
    ],
)
def test_an_example_runs(script, package, first, tmp_path, tiny_model_path):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed, it comes with the extra integrations")
    command = [sys.executable, str(EXAMPLES / script), str(tmp_path / "index")]
    command += [str(tiny_model_path)] if package == "llama_index" else []
    environment = {**os.environ, "LANGSMITH_TRACING": "false"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == first
    assert len(lines) == 2
