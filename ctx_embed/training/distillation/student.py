"""Initialise the student, from the teacher's embeddings of single entries or from a trained model; and rotations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from ctx_embed.errors import InputError
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.systems import option_defaults, require_options, without_vocabulary
from ctx_embed.text.tokenizer import TextTokenizer

# The constant a of the token weight a / (a + frequency): frequent words mean little (smooth inverse frequency, Arora et
# al. 2017).
FREQUENCY_CONSTANT = 1e-3
TABLE_DEVIATION = 0.1
# Number of texts used to align one rotation with another.
ALIGNED_TEXTS = 20_000


def student_options(encoder: str, dimension: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a system with embeddings of ``dimension``, to which a larger output is mapped."""
    require_options(encoder, options)
    options = dict(options)
    if "output_dimension" in option_defaults(encoder):
        output = options.setdefault("output_dimension", dimension)
        if output != dimension:
            raise InputError(
                f"output_dimension must be the student's dimension {dimension}, got {output!r}; leave it out"
            )
    without_vocabulary(encoder, dimension, **options)
    return options


def new_student(
    system: Callable[..., TokenEncoder],
    tokenizer: Tokenizer,
    texts: Sequence[str],
    teacher_embeddings: NDArray[np.float16],
    entry_embeddings: NDArray[np.float32],
    dimension: int,
    seed: int = 0,
    *,
    phrases: NDArray[np.int32] | None = None,
    spare_dimensions: int = 0,
    **options: Any,
) -> tuple[TokenEncoder, NDArray[np.float32]]:
    """Return a student whose table is initialised from the teacher's embeddings of single entries, and its rotation.

    The student learns the teacher's embeddings under this rotation (d, m), which leaves the ``spare_dimensions`` 0 for
    other objectives. The own rows of ``phrases`` are initialised to 0, so that a phrase is the sum of its parts. The
    embeddings are (texts, d), and (vocabulary, d) of :func:`entry_texts`.
    """
    rotation = np.pad(rotation_to(dimension - spare_dimensions, teacher_embeddings), ((0, 0), (0, spare_dimensions)))
    ids, _ = TextTokenizer(tokenizer)(texts)
    counts = np.bincount(ids, minlength=len(entry_embeddings))
    table = token_table(entry_embeddings, counts / max(1, counts.sum()), rotation)
    table = np.pad(table, ((0, 0 if phrases is None else len(phrases)), (0, 0)))
    torch.manual_seed(seed)
    student = system(tokenizer, dimension, phrases=phrases, weights=table, **options)
    student.begin_as_mean()
    return student, rotation


def token_table(
    entries: NDArray[np.float32], frequencies: NDArray[np.float64], rotation: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the first token table (vocabulary, m): the teacher's embedding of each entry, centred, rotated by (d, m).

    It is weighted by rarity: ``frequencies`` are shares of the corpus' tokens.
    """
    table: NDArray[np.float32] = (entries - entries.mean(0)) @ rotation
    table *= (FREQUENCY_CONSTANT / (FREQUENCY_CONSTANT + frequencies))[:, None]
    scaled: NDArray[np.float32] = (table * (TABLE_DEVIATION / table.std())).astype(np.float32)
    return scaled


def entry_texts(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each vocabulary entry by id, without the mark of continued words."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [entry.removeprefix("##") or entry for entry, _ in vocabulary]


def started_student(
    model: SentenceTransformer,
    texts: Sequence[str],
    teacher_embeddings: NDArray[np.float16],
    spare_dimensions: int,
    rank: int | None = None,
    phrases: NDArray[np.int32] | None = None,
) -> tuple[TokenEncoder, NDArray[np.float32]]:
    """Return a student initialised as a trained model, and the rotation of the teacher into that model's space.

    ``teacher_embeddings`` are (texts, d); the teacher leaves the model's last ``spare_dimensions`` free. Without a
    ``rank``, see :func:`with_rank`, or ``phrases``, see :func:`.more_phrases`, the model's own stay.
    """
    student = require_encoder(model)
    chosen = np.sort(np.random.default_rng(0).permutation(len(texts))[:ALIGNED_TEXTS])
    like = model.encode([texts[row] for row in chosen], normalize_embeddings=True)
    dimension = student.dimension - spare_dimensions
    rotation = rotation_to(dimension, teacher_embeddings)
    rotation = aligned_rotation(rotation, teacher_embeddings[chosen], like[:, :dimension])
    if rank is not None:
        student = with_rank(student, rank)
    if phrases is not None:
        student = with_phrases(student, phrases)
    leave_own_rows(student)
    return student, np.pad(rotation, ((0, 0), (0, spare_dimensions)))


@torch.no_grad()
def leave_own_rows(encoder: TokenEncoder) -> None:
    """Subtract the rows of a phrase's parts from the phrase's row; training adds them, see :class:`.Composition`."""
    if encoder.phrases is not None:
        table = encoder.embedding.weight
        first, second = encoder.phrases.long().unbind(1)
        words = encoder.backend_tokenizer.get_vocab_size()
        table[words:] = table[words:] - table[first] - table[second]


@torch.no_grad()
def with_rank(encoder: TokenEncoder, rank: int) -> TokenEncoder:
    """Return a Contextualizer with the ``rank`` heads of largest norm |U_r| |V_r| |W_r| of each step, in order."""
    state = encoder.state_dict()
    U, V, W = (state[f"attention.{name}"] for name in "UVW")
    norms = U.norm(dim=2) * V.norm(dim=2) * W.norm(dim=1)
    kept = norms.topk(rank).indices.sort().values
    state |= {
        "attention.U": U.take_along_dim(kept[:, :, None], 1),
        "attention.V": V.take_along_dim(kept[:, :, None], 1),
        "attention.W": W.take_along_dim(kept[:, None], 2),
    }
    config = {**encoder.get_config_dict(), "rank": rank}
    cut = type(encoder)(encoder.backend_tokenizer, **config, phrases=encoder.phrases, weights=encoder.embedding.weight)
    cut.load_state_dict(state)
    return cut


@torch.no_grad()
def with_phrases(encoder: TokenEncoder, phrases: NDArray[np.int32]) -> TokenEncoder:
    """Return a copy of an encoder with ``phrases``: first its own, then new ones, which are sums of their parts."""
    table = encoder.embedding.weight.new_empty(
        encoder.backend_tokenizer.get_vocab_size() + len(phrases), encoder.dimension
    )
    table[: encoder.entries] = encoder.embedding.weight
    known = 0 if encoder.phrases is None else len(encoder.phrases)
    for row, (first, second) in enumerate(phrases[known:].tolist(), encoder.entries):
        table[row] = table[first] + table[second]
    grown = type(encoder)(encoder.backend_tokenizer, **encoder.get_config_dict(), phrases=phrases, weights=table)
    grown.load_state_dict({**encoder.state_dict(), "embedding.weight": table, "phrases": grown.phrases})
    return grown


def require_encoder(model: SentenceTransformer) -> TokenEncoder:
    """Return the token encoder of a model; raise an InputError unless its output is as large as its table's rows."""
    student = model[0]
    if not isinstance(student, TokenEncoder) or student.get_embedding_dimension() != student.dimension:
        raise InputError("--from must be a model made by distill, whose first module is an encoder over a token table")
    return student


def rotation_to(dimension: int, embeddings: NDArray[np.float16]) -> NDArray[np.float32]:
    """Return the rotation (d, dimension) onto the directions that hold most of embeddings' (n, d) squared length."""
    d = embeddings.shape[1]
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
    """Turn a rotation (d, m) within its span, so that rotated embeddings are as close to ``like`` as possible.

    Source: the orthogonal Procrustes problem, Schoenemann (1966).
    """
    rotated = embeddings.astype(np.float32) @ rotation
    left, _, right = np.linalg.svd(rotated.T.astype(np.float64) @ like)
    return np.ascontiguousarray((rotation @ (left @ right)).astype(np.float32))
