"""Rotations of a teacher's embeddings into the student's dimensions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError

# Number of texts used to align one rotation with another.
ALIGNED_TEXTS = 20_000


def require_dimension(dimension: int, teacher_dimension: int) -> None:
    """Raise an error if the student has more dimensions than its teacher.

    Raises:
        InputError: with both.
    """
    if dimension > teacher_dimension:
        raise InputError(f"dimension must be at most the teacher's {teacher_dimension}, got {dimension}")


def rotation_to(dimension: int, embeddings: NDArray[np.float16]) -> NDArray[np.float32]:
    """Return the rotation (d, dimension) onto the directions with most of the embeddings' squared length.

    Args:
        dimension: the dimension to rotate to, at most d.
        embeddings: (sentences, d) the teacher's.

    Raises:
        InputError: the teacher has fewer dimensions.
    """
    d = embeddings.shape[1]
    require_dimension(dimension, d)
    gram = np.zeros((d, d))
    for start in range(0, len(embeddings), 65_536):
        part = embeddings[start : start + 65_536].astype(np.float32)
        gram += part.T @ part
    _, directions = np.linalg.eigh(gram)
    directions = directions[:, ::-1][:, :dimension]
    # An eigenvector's sign is arbitrary; fix it, so that a corpus determines its rotation.
    signs = np.sign(directions[np.abs(directions).argmax(0), np.arange(dimension)])
    return np.ascontiguousarray((directions * signs).astype(np.float32))


def aligned_rotation(
    rotation: NDArray[np.float32], embeddings: NDArray[np.float16], like: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Turn a rotation within its directions so that the rotated embeddings are as close to ``like`` as possible.

    Args:
        rotation: (d, m) from :func:`rotation_to`.
        embeddings: (texts, d) the teacher's.
        like: (texts, m) other embeddings of the same texts.

    Source: the orthogonal Procrustes problem, Schoenemann (1966).
    """
    rotated = embeddings.astype(np.float32) @ rotation
    left, _, right = np.linalg.svd(rotated.T.astype(np.float64) @ like)
    return np.ascontiguousarray((rotation @ (left @ right)).astype(np.float32))


def rotation_like(
    embeddings: NDArray[np.float16], others: NDArray[np.float16], rotation: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the rotation (d, m) of a second teacher into the space of the first one's targets.

    Args:
        embeddings: (texts, d) the second teacher's.
        others: (texts, d1) the first teacher's, for the same texts.
        rotation: (d1, m) the first teacher's; its zero dimensions are also zero in the result.
    """
    spare = int((~rotation.any(0)).sum())
    m = rotation.shape[1] - spare
    like = others[:ALIGNED_TEXTS].astype(np.float32) @ rotation[:, :m]
    own = aligned_rotation(rotation_to(m, embeddings), embeddings[:ALIGNED_TEXTS], like)
    return np.concatenate([own, np.zeros((len(own), spare), np.float32)], axis=1)
