import pytest
import torch

from ctx_embed.errors import UnwritableError
from ctx_embed.fingerprint import identity
from ctx_embed.training.run import Checkpoint
from tests.helpers.disk import full_disk


@pytest.fixture
def output(tmp_path):
    return tmp_path / "model"


def test_identity_is_of_values_and_their_order():
    assert identity({"a": 1, "b": [2]}, "x") == identity({"b": [2], "a": 1}, "x")
    assert len({identity(1), identity("1"), identity(2), identity(1, 2), identity([1, 2]), identity(None)}) == 6


def test_a_state_comes_back_to_the_same_run_only(output):
    assert Checkpoint(output, "run").load() is None
    assert list(output.parent.iterdir()) == []
    state = {"weights": {"w": torch.arange(3.0)}, "history": [{"epoch": 1, "loss": 0.5}]}
    Checkpoint(output, "run").save(state)
    assert [path.name for path in output.parent.iterdir()] == ["model.partial"]
    loaded = Checkpoint(output, "run").load()
    assert loaded["weights"]["w"].tolist() == [0, 1, 2]
    assert loaded["history"] == state["history"]
    assert loaded.keys() == state.keys()
    assert Checkpoint(output, "another run").load() is None
    Checkpoint(output, "another run").save({"step": 1})
    assert Checkpoint(output, "run").load() is None


def test_a_full_disk_leaves_the_state_before(output):
    checkpoint = Checkpoint(output, "run")
    checkpoint.save({"step": 1})
    with full_disk(100_000), pytest.raises(UnwritableError, match=r"cannot write .*checkpoint.pt: File too large"):
        checkpoint.save({"weights": torch.zeros(1_000_000)})
    assert checkpoint.load() == {"step": 1}
    assert [path.name for path in checkpoint.folder.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("content", [b"", "half", {"no": "run"}, [1, 2]])
def test_a_damaged_state_or_one_of_something_else_is_none(output, content):
    checkpoint = Checkpoint(output, "run")
    checkpoint.save({"step": 1})
    whole = checkpoint.path.read_bytes()
    if isinstance(content, str | bytes):
        checkpoint.path.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    else:
        torch.save(content, checkpoint.path)
    assert checkpoint.load() is None
    checkpoint.save({"step": 2})
    assert checkpoint.load() == {"step": 2}


def test_remove_takes_what_runs_left_and_nothing_else(output):
    checkpoint = Checkpoint(output, "run")
    checkpoint.save({"step": 1})
    (checkpoint.folder / ".checkpoint.pt.killed").write_bytes(b"half")
    checkpoint.remove()
    assert not checkpoint.folder.exists()
    checkpoint.save({"step": 1})
    (checkpoint.folder / "notes.txt").write_text("mine")
    checkpoint.remove()
    assert [path.name for path in checkpoint.folder.iterdir()] == ["notes.txt"]
