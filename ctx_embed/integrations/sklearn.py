"""scikit-learn's transformer of texts into embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from ctx_embed.errors import InputError
from ctx_embed.integrations.shared import shared_model
from ctx_embed.numpy_model.embedder import require_dimensions


class EmbeddingTransformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns texts into embeddings in a pipeline, a ColumnTransformer or a grid search.

    It holds the name of a model rather than the model, so a clone or a pickle has a few hundred bytes. The model is
    loaded once per process.

    Args:
        model: a name or a folder, as :func:`ctx_embed.load` takes it.
        truncate_dim: keep only the first features of each embedding, scaled to unit length; None keeps all.
        batch_size: texts embedded at a time.
    """

    def __init__(self, model: str = "default", truncate_dim: int | None = None, batch_size: int = 512) -> None:
        self.model = model
        self.truncate_dim = truncate_dim
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any = None) -> EmbeddingTransformer:
        """Check that the model can be loaded and ``truncate_dim`` is not above its dimension; learn the columns."""
        require_dimensions(self.truncate_dim, shared_model(self.model).get_embedding_dimension())
        self.columns_ = list(_columns(X))
        return self

    def fit_transform(self, X: Any, y: Any = None) -> NDArray[np.float32]:
        """Return :meth:`transform` of the texts after :meth:`fit`; a generator of them is read once."""
        X = X if hasattr(X, "__len__") else list(X)
        return self.fit(X).transform(X)

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return the embeddings (n, m) of n texts: a list, a Series, an array (n,) or (n, columns), or a data frame.

        Embeddings of several columns are concatenated. An item that is not a string is an InputError: fill missing
        values first. So are other columns than those of fit; without a fit, the first columns count.
        """
        columns = _columns(X)
        if list(columns) != self.__dict__.setdefault("columns_", list(columns)):
            raise InputError(f"X must have the columns {self.columns_}, as in fit, got {list(columns)}")
        model = shared_model(self.model)
        options: Any = {"truncate_dim": self.truncate_dim, "normalize_embeddings": self.truncate_dim is not None}
        embeddings = []
        for column in columns.values():
            for row, text in enumerate(column):
                if not isinstance(text, str):
                    hint = "" if isinstance(text, bytes | int) else "; fill missing values first"
                    raise InputError(f"row {row} of X must be a string, got {type(text).__name__}{hint}")
            found = model.encode(column, batch_size=self.batch_size, **options)
            embeddings.append(found.reshape(-1, self._dimension()))
        return np.hstack(embeddings)

    def get_feature_names_out(self, input_features: ArrayLike | Sequence[str] | None = None) -> NDArray[Any]:
        """Return a name for each feature: ``embedding0``, ..., after the column's name where there are several."""
        names = [f"embedding{feature}" for feature in range(self._dimension())]
        given = getattr(self, "columns_", ()) if input_features is None else np.asarray(input_features).ravel()
        columns = [str(column) for column in given]
        if len(columns) > 1:
            names = [f"{column}_{name}" for column in columns for name in names]
        return np.array(names, dtype=object)

    def _dimension(self) -> int:
        dimension = self.truncate_dim or shared_model(self.model).get_embedding_dimension()
        assert dimension is not None
        return dimension

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = True
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        return tags


def _columns(X: Any) -> dict[str, list[Any]]:
    """Return the texts of each column by name; scikit-learn calls those without names x0, x1, ..."""
    if isinstance(X, str):
        raise InputError("X must be a sequence of texts, got one string; put it into a list")
    if hasattr(X, "columns"):  # a data frame of pandas or polars
        names = [str(name) for name in X.columns]
        if len(set(names)) < len(names):
            raise InputError(f"the columns of X must have different names, got {names}")
        return {str(name): list(X[name]) for name in X.columns}
    if getattr(X, "ndim", 1) == 2:
        return {f"x{place}": list(column) for place, column in enumerate(np.asarray(X, dtype=object).T)}
    return {"x0": list(X)}
