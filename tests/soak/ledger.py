"""What was written when, and so which answers are right at a moment."""

import random
import re
import threading
from dataclasses import dataclass
from math import inf

MEMBERS = 3
# A reader may be so many versions behind when it reports what it has seen.
KEPT = 100
WORDS = [
    f"{first}{last}" for first in ("rain", "snow", "sun", "wind") for last in ("", "fall", "flower", "mill", "storm")
]
WORDS += [
    f"{first}{last}" for first in ("book", "play", "work", "sea") for last in ("", "shop", "ground", "food", "side")
]


def text_of(group: int, number: int, member: int) -> str:
    """Return the text of a document in a version; every text is another."""
    words = random.Random(f"{group} {number} {member}").sample(WORDS, 8)
    return f"{' '.join(words)} g{group} v{number}"


def version_of(identifier: str, text: str) -> tuple[int, int]:
    """Return the group and the version of a document, after checking that it has the text of that version."""
    group, member = map(int, identifier.split("-"))
    found = re.search(r" v(\d+)$", text)
    assert found, (identifier, text)
    assert text == text_of(group, int(found[1]), member), (identifier, text)
    return group, int(found[1])


@dataclass
class Version:
    """A state of a group: its number, or None when it is deleted, and the time of its writing.

    Args:
        number: None for the state without documents.
        began: when its writing began.
        done: when it was acknowledged or first seen; infinite if it never was.
    """

    number: int | None
    began: float
    done: float = inf


class Ledger:
    """The versions of groups of documents, each of which has one writer that changes all its documents at once.

    Args:
        groups: the number of groups.
    """

    def __init__(self, groups: int) -> None:
        self._lock = threading.Lock()
        self._versions = [[Version(None, -inf, -inf)] for _ in range(groups)]
        self._numbers = [0] * groups

    def begin(self, group: int, present: bool, now: float) -> Version:
        """Note that a version is being written: the next one, or the deletion of the group."""
        with self._lock:
            self._numbers[group] += present
            version = Version(self._numbers[group] if present else None, now)
            self._versions[group] = [*self._versions[group][-KEPT:], version]
            return version

    def newest(self, group: int) -> Version:
        """Return the version that was begun last."""
        return self._versions[group][-1]

    def possible(self, group: int, began: float, ended: float) -> list[Version]:
        """Return the versions that a reader may have found who asked and was answered at these times."""
        versions = self._versions[group]
        base = max(place for place, version in enumerate(versions) if version.done < began)
        return [version for version in versions[base:] if version.began < ended]

    def check(self, group: int, number: int | None, began: float, ended: float) -> None:
        """Check an answer: it is a version that may be found then, which nobody may miss from now on."""
        with self._lock:
            possible = self.possible(group, began, ended)
            found = [version for version in possible if version.number == number]
            assert found, f"group {group}: found {number} from {began} to {ended}, not of {possible}"
            if len(found) == 1:
                found[0].done = min(found[0].done, ended)

    def check_other(self, group: int, number: int, began: float, ended: float) -> None:
        """Check an answer without a version: it need not be found then."""
        with self._lock:
            possible = self.possible(group, began, ended)
            assert any(version.number != number for version in possible), f"group {group}: no {number}, but {possible}"

    def refused(self, group: int) -> None:
        """Note that the version that was begun last has not been written."""
        with self._lock:
            self._versions[group].pop()
