"""The benchmark that compares classifiers: its table reads the results that it is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "classifiers.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="benchmarks are not beside an installed package")


def ran(*arguments: str, before: str = "") -> subprocess.CompletedProcess:
    code = f"import runpy, sys\n{before}\nrunpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, *arguments]
    paths = {"PYTHONPATH": f"{SCRIPT.parent}:{SCRIPT.parents[1]}"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **paths})


def test_the_table_is_that_of_the_given_results(tmp_path):
    rows = [
        {"system": "fastText", "task": f"task {number}", "size": 8, "accuracies": [number, number + 2], "seconds": 0.5}
        | {"texts_per_second": 1000}
        for number in range(9)
    ]
    results = tmp_path / "results.json"
    results.write_text(json.dumps(rows))
    done = ran("--table", "-o", str(results))
    assert done.stdout.splitlines()[2:] == ["| fastText | 5.0 |  |  |  |  | 0.5 | 1,000 |"]
    # A mean of fewer tasks would be another figure.
    results.write_text(json.dumps(rows[1:]))
    assert ran("--table", "-o", str(results)).stdout.splitlines()[2:] == []


def test_what_a_missing_system_needs(tmp_path):
    data, out = tmp_path, tmp_path / "results.json"
    options = ["--data", str(data), "--work", str(tmp_path), "-o", str(out), "--system", "fastText"]
    done = ran(*options, before="sys.modules['fasttext'] = None")
    assert (done.returncode, out.exists()) == (1, False)
    assert done.stderr.splitlines()[-1].startswith("Error: fastText needs fasttext: model2vec and all-MiniLM-L6-v2 are")
