"""The student: initialised from the teacher's embeddings of single entries or from a trained model, with phrases.

Phrases are neighbouring entries that become entries of their own. In training, a phrase's row is the sum of its parts'
rows and a row of its own. What is learned about a word thus serves every phrase with it, and a rare phrase starts as
the sum of its words. After training, each sum is stored as one row, so that a phrase costs one look-up.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from ctx_embed.errors import InputError, quoted
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.systems import option_defaults, require_options, without_vocabulary
from ctx_embed.text.tokenizer import CONTINUED, Phrases, TextTokenizer
from ctx_embed.training.batches import ranges

# The constant a of the token weight a / (a + frequency): frequent words mean little (smooth inverse frequency, Arora et
# al. 2017).
FREQUENCY_CONSTANT = 1e-3
TABLE_DEVIATION = 0.1
# Number of texts used to align one rotation with another.
ALIGNED_TEXTS = 20_000
# This share of the phrases, learned first, joins two words; the rest also joins such phrases ("do n't", "one of the").
FIRST_SHARE = 0.7
# A phrase must occur at least this often: rarer ones have too few texts to learn from.
FEWEST = 20
# For a whole word fewer occurrences suffice, since it is initialised as the sum of its pieces.
FEWEST_PIECES = 10
APOSTROPHE = "'"
# Of the phrases that are added to a model, this share joins the pieces of words, in rounds that each add a piece. The
# others begin with a negation, since the sum of two words cannot have the meaning of a negated word.
PIECES_SHARE = 0.8
PIECES_ROUNDS = (0.7, 0.2, 0.1)
NEGATIONS = frozenset({"not", "no", "never", "nothing", "nobody", "none", "neither", "nor", "without", "hardly", "t"})


def student_options(encoder: str, dimension: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a system whose embeddings have ``dimension``; it maps a larger output to that size."""
    require_options(encoder, options)
    options = dict(options)
    if "output_dimension" in option_defaults(encoder):
        output = options.setdefault("output_dimension", dimension)
        if output != dimension:
            raise InputError(
                f"output_dimension must be the student's dimension {dimension}, got {quoted(output)}; leave it out"
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
    seed: int,
    *,
    phrases: NDArray[np.int32] | None,
    spare_dimensions: int,
    **options: Any,
) -> tuple[TokenEncoder, NDArray[np.float32]]:
    """Return a student whose table is initialised from the teacher's embeddings of single entries, and a rotation.

    The student learns the teacher's embeddings times this rotation (d, m), whose last ``spare_dimensions`` are 0, free
    for other objectives. Each phrase starts as the sum of its parts: its own row is 0. ``teacher_embeddings`` are
    (texts, d); ``entry_embeddings`` are (vocabulary, d), of the texts of :func:`entry_texts`.
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
    """Return an initial token table (vocabulary, m): the teacher's embedding of each entry, centred, rotated by (d, m).

    Rare entries weigh more: ``frequencies`` are shares of the corpus' tokens.
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
    """Return a student initialised from a trained model, and the rotation of the teacher into that model's space.

    ``teacher_embeddings`` are (texts, d); the teacher leaves the model's last ``spare_dimensions`` free. If ``rank``
    (see :func:`with_rank`) or ``phrases`` (see :func:`.more_phrases`) is None, the model keeps its own.
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
    """Return a Contextualizer with the ``rank`` heads of largest |U_r| |V_r| |W_r| in each step, in their order."""
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
    """Return a copy of an encoder with ``phrases``: its own ones first; a new one starts as the sum of its parts."""
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
    """Return the rotation (d, dimension) onto the directions with most of the squared length of embeddings (n, d)."""
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


def _strongest(
    ids: NDArray[np.int32],
    lengths: NDArray[np.int64],
    first: NDArray[np.bool_],
    second: NDArray[np.bool_],
    count: int,
    fewest: int,
    before: NDArray[np.bool_] | None = None,
) -> NDArray[np.int32]:
    """Return the strongest pairs (<= count, 2) of neighbouring entries, strongest first.

    A pair's strength is n log(n N / (n_first n_second)), the leading term of the log-likelihood ratio (Dunning 1993).
    ``first`` and ``second`` (entries,) say which entries may be first and second in a pair. A pair that an entry of
    ``before`` follows ends within a word and is left out.
    """
    width = len(first)
    both = first[ids[:-1]] & second[ids[1:]]
    ends = lengths.cumsum()
    both[ends[(ends > 0) & (ends < len(ids))] - 1] = False
    if before is not None:
        both[:-1] &= ~before[ids[2:]]
    keys, counts = np.unique(ids[:-1][both].astype(np.int64) * width + ids[1:][both], return_counts=True)
    keys, counts = keys[counts >= fewest], counts[counts >= fewest]
    occurs = np.bincount(ids, minlength=width).astype(np.float64)
    left, right = keys // width, keys % width
    strength = counts * np.log(counts * len(ids) / (occurs[left] * occurs[right]))
    best = np.argsort(-strength, kind="stable")[:count]
    return np.stack([left, right], axis=1)[best].astype(np.int32)


def learn_phrases(
    texts: Sequence[str], tokenizer: Tokenizer, count: int, fewest: int = FEWEST
) -> NDArray[np.int32] | None:
    """Return pairs (<= count, 2) for :class:`ctx_embed.text.tokenizer.Phrases` of two to four words, or None."""
    vocabulary = tokenizer.get_vocab()
    # Whole words, and the apostrophe between them.
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    joinable = np.array([entry == APOSTROPHE or entry.isalpha() for entry in entries])
    reader = TextTokenizer(tokenizer)
    ids, lengths = reader(texts)
    first = round(FIRST_SHARE * count)
    pairs = np.zeros((0, 2), dtype=np.int32)
    for more in (first, count - first):
        if len(ids) < 2 or more == 0:
            break
        found = _strongest(ids, lengths, joinable, joinable, more, fewest)
        if not len(found):
            break
        pairs = np.concatenate([pairs, found])
        joinable = np.concatenate([joinable, np.ones(len(found), dtype=bool)])
        reader.phrases = Phrases(pairs, len(vocabulary))
        ids, lengths = reader(texts)
    return pairs if len(pairs) else None


def more_phrases(
    texts: Sequence[str], tokenizer: Tokenizer, known: NDArray[np.int32] | None, count: int
) -> NDArray[np.int32] | None:
    """Return a model's phrases and up to ``count`` more, learned from texts: joined word pieces and negated words.

    A word that the tokenizer cuts, such as "metasta ##sis", becomes one entry; the tokenizer stays the same. The
    ``known`` phrases (P, 2) come first, in the same order.
    """
    vocabulary = tokenizer.get_vocab()
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    pairs = np.zeros((0, 2), dtype=np.int32) if known is None else known
    reader = TextTokenizer(tokenizer)
    for kind, share in [*(("pieces", PIECES_SHARE * share) for share in PIECES_ROUNDS), ("negated", 1 - PIECES_SHARE)]:
        named = entries
        if len(pairs):
            reader.phrases = Phrases(pairs, len(entries))
            named = entries + reader.phrases.texts(entries)
        ids, lengths = reader(texts)
        if len(ids) < 2 or not count:
            break
        piece = np.array([text.startswith(CONTINUED) for text in named])
        word = ~piece & np.array([text.replace(" ", "").replace(APOSTROPHE, "a").isalpha() for text in named])
        negated = word & np.array([text.rpartition(" ")[2] in NEGATIONS for text in named])
        if kind == "pieces":
            found = _strongest(ids, lengths, word, piece, round(share * count), FEWEST_PIECES)
        else:
            # Leave out pairs that a piece follows: their second word is only the beginning of a word.
            found = _strongest(ids, lengths, negated, word & ~negated, round(share * count), FEWEST, piece)
        pairs = np.concatenate([pairs, found])
    return pairs if len(pairs) else None


class Composition:
    """Maps each entry to the rows that it sums: its own row and, for a phrase, the rows of its parts.

    While the encoder is trained, its table stores own rows only.
    """

    def __init__(self, encoder: TokenEncoder) -> None:
        self.encoder = encoder
        # For each entry the rows that it sums: its own row, and all rows that its parts sum.
        summed = [[entry] for entry in range(encoder.entries)]
        if encoder.phrases is not None:
            words = encoder.backend_tokenizer.get_vocab_size()
            for phrase, (first, second) in enumerate(encoder.phrases.tolist(), words):
                summed[phrase] += summed[first] + summed[second]
        self.summed = np.array([row for rows in summed for row in rows])
        self.offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in summed])])

    def _summed(self, entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows that each entry sums, entry by entry, and where each entry's rows begin."""
        counts = self.offsets[entries + 1] - self.offsets[entries]
        return self.summed[ranges(self.offsets[entries], counts)], counts.cumsum() - counts

    def used(self, ids: Tensor) -> Tensor:
        """Return the numbers of all rows that the entries ``ids`` sum, ascending, each once."""
        entries = np.unique(ids.cpu().numpy())
        return torch.from_numpy(np.unique(self._summed(entries)[0])).to(ids.device)

    def rows(self, entries: Tensor, used: Tensor, own: Tensor) -> Tensor:
        """Return the sums (entries, m) of each entry's rows; ``own`` (used, m) has the rows numbered ``used``."""
        summed, starts = self._summed(entries.cpu().numpy())
        places = torch.searchsorted(used, torch.from_numpy(summed).to(used.device))
        return F.embedding_bag(places, own, torch.from_numpy(starts).to(used.device), mode="sum")

    def embed(self, ids: Tensor, lengths: list[int], used: Tensor, own: Tensor) -> Tensor:
        """Return the embeddings of packed texts, from summed rows; the gradient goes to the rows ``own`` (used, m)."""
        entries, renumbered = torch.unique(ids, return_inverse=True)
        rows = self.rows(entries, used, own)
        if self.encoder.ids_may_be_renumbered:
            ids, table = renumbered, rows
        else:
            table = self.encoder.embedding.weight.detach().index_copy(0, entries, rows)
        offsets = torch.tensor([0, *lengths], device=ids.device).cumsum(0).to(torch.int32)
        features = {"input_ids": ids[None], "cu_seq_lens_q": offsets}
        embedded = functional_call(self.encoder, {"embedding.weight": table}, (features,))
        embeddings: Tensor = embedded["sentence_embedding"]
        return embeddings

    @torch.no_grad()
    def fold(self) -> None:
        """Put the sums into the encoder's table, for good."""
        if self.encoder.phrases is not None:
            table = self.encoder.embedding.weight
            every = torch.arange(len(table), device=table.device)
            table.copy_(self.rows(every, every, table))

    @contextmanager
    def folded(self) -> Iterator[None]:
        """Put the sums into the encoder's table within a ``with`` block."""
        own = self.encoder.embedding.weight.detach().clone()
        self.fold()
        try:
            yield
        finally:
            with torch.no_grad():
                self.encoder.embedding.weight.copy_(own)
