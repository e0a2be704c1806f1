"""Some seconds of `make soak`, and answers that it must not accept."""

import pytest

from tests.soak.soak import Ledger, Soak


def test_every_acknowledged_write_is_found(tmp_path):
    soak = Soak(tmp_path / "soak.index", groups=6, seconds=4, pause=0.8)
    soak.run()
    assert soak.done["writes"] > 10
    assert sum(number for name, number in soak.done.items() if name.startswith("kills")) >= 2


def test_stale_and_early_answers_are_wrong():
    ledger = Ledger(1)
    first, second = ledger.begin(0, True, 1.0), ledger.begin(0, True, 3.0)
    first.done, second.done = 2.0, 4.0
    for number, began, ended in ((None, 0.0, 1.5), (1, 0.0, 1.5), (1, 2.5, 3.5), (2, 2.5, 3.5), (2, 5.0, 6.0)):
        ledger.check(0, number, began, ended)
    for number, began, ended in ((1, 0.0, 0.5), (None, 2.5, 3.5), (1, 5.0, 6.0), (3, 5.0, 6.0)):
        with pytest.raises(AssertionError):
            ledger.check(0, number, began, ended)
    with pytest.raises(AssertionError):
        ledger.check_other(0, 2, 5.0, 6.0)


def test_what_was_seen_once_is_seen_again():
    ledger = Ledger(1)
    ledger.begin(0, True, 1.0)
    ledger.check(0, None, 2.0, 3.0)
    ledger.check(0, 1, 4.0, 5.0)
    with pytest.raises(AssertionError):
        ledger.check(0, None, 6.0, 7.0)
