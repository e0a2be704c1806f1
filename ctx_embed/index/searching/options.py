"""The options of a search, declared once: the command line and the server's request follow from this declaration."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args

from ctx_embed.errors import InputError, described, unknown_name
from ctx_embed.index.arguments import checked_count
from ctx_embed.index.storage.filters import field_path, parse_filter

Mode: TypeAlias = Literal["hybrid", "dense", "words"]
MODES: tuple[Mode, ...] = get_args(Mode)
# All pairs of the candidates of mmr are compared.
MOST_DIVERSIFIED = 4096
# Budgets: texts and ids in `exclude`, ids in `like`, characters of a query and of all texts in `exclude`, and those of
# documents in `like` whose words are searched for.
MOST_EXCLUDED, MOST_LIKED, MOST_CHARACTERS, LIKED_CHARACTERS = 10_000, 1_000, 1_000_000, 100_000
# The value of `group` that means a hit's document.
BY_DOCUMENT = "id"


class Says(NamedTuple):
    """The help text of an option and, for a number, its minimum and maximum."""

    help: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Options:
    """The options of a search, see :meth:`SearchIndex.search`.

    Raises:
        InputError: a value has the wrong type or range, or the filter cannot be understood.
    """

    k: Annotated[int, Says("Hits for each query.", least=1)] = 10
    mode: Annotated[Mode | None, Says("By meaning (dense), by words, or both.  [default: hybrid for texts]")] = None
    where: Annotated[str | None, Says("A metadata filter, e.g. 'year >= 2020 and lang = \"en\"'.")] = None
    threshold: Annotated[float | None, Says("The lowest cosine of a hit.", least=-1, most=1)] = None
    exclude: Annotated[str | int | Sequence[str | int], Says("An example to keep away from.")] = ()
    fuse: Annotated[bool, Says("Make one ranking of several queries, by reciprocal ranks.")] = False
    offset: Annotated[int, Says("Best hits to skip.", least=0)] = 0
    group: Annotated[str | None, Says("Only the best hit of each document (id) or value of a field.")] = None
    mmr: Annotated[float | None, Says("Varied hits: 1 relevance, 0 variety.", least=0, most=1)] = None
    context: Annotated[int, Says("Neighbouring passages to show on each side.", least=0)] = 0
    rerank: Annotated[Any, Says("Score the candidates again: minilm, a name or a folder.")] = None
    candidates: Annotated[int, Says("The best passages that a reranker and mmr choose from.", least=1)] = 50
    document: Annotated[bool, Says("Give hits the whole texts of their documents.")] = False
    min_relevance: Annotated[float | None, Says("The lowest relevance of a hit, e.g. 0.8.", least=0, most=1)] = None
    highlight: Annotated[bool, Says("Find the sentence of each hit that answers the query best.")] = False
    deadline: Annotated[float | None, Says("Seconds after which the search gives up.", least=0)] = None

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("offset", 0), ("context", 0), ("candidates", 1)):
            checked_count(name, getattr(self, name), least)
        for name in ("fuse", "document", "highlight"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} must be True or False, got {getattr(self, name)!r:.60}")
        if self.mode is not None and (not isinstance(self.mode, str) or self.mode not in MODES):
            raise unknown_name("mode", self.mode, MODES)
        if self.threshold is not None and not _is_number(self.threshold):
            raise InputError(f"the threshold must be a cosine from -1 to 1, got {self.threshold!r}")
        if self.mmr is not None and not (_is_number(self.mmr) and 0 <= self.mmr <= 1):
            raise InputError(f"mmr must be a number from 0 (variety) to 1 (relevance), got {self.mmr!r}")
        if self.mmr is not None and self.candidates > MOST_DIVERSIFIED:
            raise InputError(f"candidates must be at most {MOST_DIVERSIFIED} with mmr, got {self.candidates}")
        if self.min_relevance is not None and not (_is_number(self.min_relevance) and 0 <= self.min_relevance <= 1):
            raise InputError(f"min_relevance must be a number from 0 to 1, got {self.min_relevance!r}")
        if self.deadline is not None and not (_is_number(self.deadline) and self.deadline > 0):
            raise InputError(f"deadline must be a number of seconds above 0, got {self.deadline!r}")
        if self.group is not None:
            if not isinstance(self.group, str):
                raise InputError(f"group must be 'id' or a metadata field, got {described(self.group)}")
            field_path(self.group)
        if self.where is not None:
            parse_filter(self.where)

    @property
    def wanted(self) -> int:
        """The number of hits up to the last one returned."""
        return int(self.offset) + int(self.k)

    @property
    def pool(self) -> int:
        """The number of passages among which the hits are chosen."""
        chosen = self.rerank is not None or self.mmr is not None
        return max(self.wanted, int(self.candidates)) if chosen else self.wanted


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and not math.isnan(value)


class SearchOptions(TypedDict, total=False):
    """The options of :meth:`SearchIndex.search` besides ``k`` and ``fuse``, for type checkers."""

    mode: Mode | None
    where: str | None
    threshold: float | None
    exclude: str | int | Sequence[str | int]
    offset: int
    group: str | None
    mmr: float | None
    context: int
    rerank: Any
    candidates: int
    document: bool
    min_relevance: float | None
    highlight: bool
    deadline: float | None
