"""Steps of long jobs: work is committed every few seconds, so that a killed job loses at most one step."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """The amount of work between two commits of a long job, limited by both numbers below.

    Args:
        documents: the number of documents after which to commit.
        seconds: the time after which to commit.
        batch: the maximum number of documents that are embedded at a time.
    """

    documents: int = 16_384
    seconds: float = 5.0
    batch: int = 2048

    def ends(self, documents: int, began: float) -> bool:
        """Return whether a step with this number of documents, begun at this time (monotonic), should end."""
        return documents >= self.documents or time.monotonic() - began >= self.seconds


STEPS = Steps()
