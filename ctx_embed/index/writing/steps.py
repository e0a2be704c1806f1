"""The steps of long jobs: work that is committed every few seconds, so that a killed job loses no more than a step."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """How much a long job does between two commits.

    Args:
        documents: commit after this number of documents,
        seconds: or after this time.
        batch: the most documents that are embedded at a time.
    """

    documents: int = 16_384
    seconds: float = 5.0
    batch: int = 2048

    def ends(self, documents: int, began: float) -> bool:
        """Return whether a step with this number of documents, begun at this time (monotonic), should end."""
        return documents >= self.documents or time.monotonic() - began >= self.seconds


STEPS = Steps()
