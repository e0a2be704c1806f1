"""Some seconds of `make soak`."""

from tests.soak.soak import Soak


def test_every_acknowledged_write_is_found(tmp_path):
    soak = Soak(tmp_path / "soak.index", groups=6, seconds=4, pause=0.8)
    soak.run()
    assert soak.done["writes"] > 10
    assert sum(number for name, number in soak.done.items() if name.startswith("kills")) >= 2
