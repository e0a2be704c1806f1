"""Explain the similarity of a query and a document: what each token of both adds to their cosine."""

from __future__ import annotations

from dataclasses import dataclass

from ctx_embed.errors import InputError
from ctx_embed.index.model import IndexModel
from ctx_embed.numpy_model import Embedder as NumpyEmbedder
from ctx_embed.numpy_model.explaining import CosineParts
from ctx_embed.texts import require_explainable


@dataclass(frozen=True)
class Similarity:
    """The cosine of a query and a document, and what their tokens add to it.

    Attributes:
        score: the cosine.
        query: the part of the cosine that each token of the query adds.
        document: the part of the cosine that each token of the document adds.
    """

    score: float
    query: CosineParts
    document: CosineParts


def explain_similarity(embedder: IndexModel, query: str, text: str) -> Similarity:
    """Return the cosine of a query and a text, token by token.

    Raises:
        InputError: the query or the text is not a string or is too long, or the model runs on torch only.
    """
    for name, value in (("query", query), ("text", text)):
        require_explainable(value, f"the {name}")
    model = embedder.model
    if not isinstance(model, NumpyEmbedder):
        raise InputError("only a Contextualizer explains similarities; this index has a model of another kind")
    (of_query,), (of_text,) = embedder.queries([query]), embedder.documents([text])
    return Similarity(
        float(of_query @ of_text), model.explain(query, of_text, "query"), model.explain(text, of_query, "document")
    )
