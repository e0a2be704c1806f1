"""The options of a search, declared once, for Python's signature, the command line, HTTP and MCP alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ctx_embed.errors import InputError, described
from ctx_embed.index.filters import field_path, parse_filter
from ctx_embed.options import documented, option, require_valid

Mode: TypeAlias = Literal["hybrid", "dense", "words"]
# Maximum candidates for mmr, which compares all pairs of them.
MOST_DIVERSIFIED = 4096


@documented
@dataclass(frozen=True)
class Options:
    """The options of :meth:`SearchIndex.search`.

    Raises:
        InputError: a value has the wrong type or range, or the filter cannot be understood.
    """

    k: int = option(10, "Hits for each query; there may be fewer.", least=1, flag="-k")
    mode: Mode | None = option(
        None,
        "By meaning (dense: cosines), by words (BM25), or by the mean of both (hybrid).",
        default_is="hybrid for texts, dense for vectors and like",
    )
    late: bool = option(
        True,
        "In hybrid, order the best passages by what each word of the query finds in them, too (late interaction).",
    )
    where: str | None = option(
        None, "A metadata filter, applied before ranking: 'year >= 2020 and lang = \"en\"'.", metavar="FILTER"
    )
    threshold: float | None = option(None, "The lowest cosine of a hit.", least=-1, most=1)
    exclude: str | int | Sequence[str | int] = option(
        (),
        "A text, or the id of a document, to keep away from, in dense and hybrid; such documents are left out.",
        flag="--not",
        metavar="TEXT|ID",
        repeated=True,
    )
    fuse: bool = option(False, "Make one ranking of several queries, by reciprocal ranks.")
    offset: int = option(0, "Best hits to skip.", least=0)
    group: str | None = option(
        None, "Only the best hit of each document (id) or value of a metadata field.", metavar="FIELD"
    )
    mmr: float | None = option(
        None, "Varied hits, by maximal marginal relevance: 1 relevance, 0 variety.", least=0, most=1, metavar="LAMBDA"
    )
    context: int = option(0, "Neighbouring passages to show on each side of a hit.", least=0)
    rerank: Any = option(None, "A model that scores the candidates again: minilm, a name or a folder.", metavar="MODEL")
    candidates: int = option(50, "The best passages that a reranker and mmr choose from.", least=1)
    document: bool = option(False, "Give hits the whole texts of their documents.")
    min_relevance: float | None = option(
        None, "The lowest relevance of a hit; 0.8 leaves out most of what hardly answers.", least=0, most=1
    )
    highlight: bool = option(False, "Find the sentence of each hit that answers the query best.")
    deadline: float | None = option(None, "Seconds after which the search gives up.", above=0)

    def __post_init__(self) -> None:
        require_valid(self)
        if self.mmr is not None and self.candidates > MOST_DIVERSIFIED:
            raise InputError(f"candidates must be at most {MOST_DIVERSIFIED} with mmr, got {self.candidates}")
        if self.group is not None:
            if not isinstance(self.group, str):
                raise InputError(f"group must be 'id' or a metadata field, got {described(self.group)}")
            field_path(self.group)
        if self.where is not None:
            parse_filter(self.where)
