from __future__ import annotations

import re

import pytest

from ctx_embed.errors import InputError
from ctx_embed.eval.catalogue import DEFAULT_TASKS, PUBLISHED_SOURCES, TASKS, find_tasks
from ctx_embed.eval.tasks import ProbeTask


def test_default_tasks():
    assert [task.name for task in find_tasks([])] == ["MR", "CR", "SUBJ", "MPQA"]


def test_every_default_task_has_every_published_figure():
    for name in DEFAULT_TASKS:
        assert list(TASKS[name].published) == list(PUBLISHED_SOURCES)


def test_names_and_files_each_once_in_order(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("a\tb\n")
    tasks = find_tasks(["STSB", str(path), "MR", "STSB"])
    assert [task.name for task in tasks] == ["STSB", str(path), "MR"]
    assert isinstance(tasks[1], FileTask)


def test_unknown_tasks(tmp_path):
    with pytest.raises(
        InputError, match=r"^unknown task 'SUB': did you mean 'SUBJ'[?] known are CR, .*, or the path of a"
    ):
        find_tasks(["SUB"])
    for missing in ("mine.tsv", "sub/mine"):
        with pytest.raises(InputError, match=f"^{re.escape(missing)}: no such file$"):
            find_tasks([missing])
    with pytest.raises(InputError, match=r": is a folder, a task is a name or a label<TAB>text file$"):
        find_tasks([str(tmp_path)])
