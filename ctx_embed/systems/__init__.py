"""The systems a Contextualizer is compared with: their names, classes, options and descriptions.

Called by training, evaluation and explanations.
A new system is a class in ``heads.py`` (attention), ``pooling.py`` or ``transformer.py``, and an entry here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.numpy_model.saved import DEFAULT_MODEL

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

    from ctx_embed.modules.token_encoder import TokenEncoder


class Description(NamedTuple):
    """Class, formula, cost and source of an encoder: m features and n tokens; other symbols are option names.

    Classes are named, not imported, since a name is looked up without torch.
    """

    kind: str
    formula: str
    complexity: str
    source: str


SYSTEMS: dict[str, Description] = {
    "contextualizer": Description(
        "modules.contextualizer.Contextualizer",
        "c^k = c^(k-1) + LayerNorm(sum_i (W_k (U_k x_i * V_k c^(k-1)) + b_k) * x_i)",
        "O(steps n rank m)",
        "Maupome & Meurs 2022",
    ),
    "mean": Description("systems.pooling.MeanEmbedding", "sum_i e(w_i) / n", "O(n m)", "Wieting et al. 2016"),
    "lama": Description(
        "systems.heads.Lama",
        "e_t = tanh((P^T c) * (Q^T h_t)) / ||.|| over heads; A = softmax_t(e); A H",
        "O(n m heads)",
        "Mehta et al. 2019",
    ),
    "lama-ctx": Description(
        "systems.heads.LamaCtx",
        "lama over the outputs of a bi-GRU",
        "O(n hidden (m + hidden + heads))",
        "Mehta et al. 2019",
    ),
    "bilinear": Description(
        "systems.heads.Bilinear", "sum_t softmax_t(c^T W h_t) h_t", "O(m^2 + n m)", "Mehta et al. 2019, eq. 8"
    ),
    "san": Description(
        "systems.heads.StructuredSelfAttention",
        "A = softmax_t(W2 tanh(W1 H^T)); A H; loss + penalty ||A A^T - I||_F^2",
        "O(n attention_dimension (m + heads))",
        "Lin et al. 2017",
    ),
    "transformer": Description(
        "systems.transformer.TransformerEncoder",
        "x_t = sqrt(m) e(w_t) + sinusoids; encoder layers; sum_t x_t / n",
        "O(layers (n m^2 + n^2 m))",
        "Vaswani et al. 2017",
    ),
    "dan": Description(
        "systems.pooling.DeepAveraging",
        "feed-forward layers over the mean of word and bigram embeddings",
        "O(n m + m hidden)",
        "Iyyer et al. 2015; Cer et al. 2018",
    ),
    "use-transformer": Description(
        "systems.transformer.UseTransformer",
        "transformer with sum_t x_t / sqrt(n)",
        "O(layers (n m^2 + n^2 m))",
        "Cer et al. 2018",
    ),
    "bigru": Description(
        "systems.pooling.BiGru", "max_t [GRU forward; GRU backward]_t", "O(n hidden (m + hidden))", "Cho et al. 2014"
    ),
    "cnn": Description(
        "systems.pooling.Convolution",
        "max_j relu(F_w [e(w_j); ..; e(w_(j+w-1))] + b_w), w = 3, 4, 5",
        "O(n m filters)",
        "Kim 2014",
    ),
    "self-attention": Description(
        "systems.pooling.SelfAttention", "mean of softmax(X X^T) X", "O(n^2 m)", "Vaswani et al. 2017"
    ),
    "self-attention-parametric": Description(
        "systems.pooling.ParametricSelfAttention",
        "mean of tanh(softmax(Q K^T / sqrt(m)) V) W_o",
        "O(n m^2 + n^2 m)",
        "Vaswani et al. 2017; the tanh is ours",
    ),
    "attentive": Description(
        "systems.heads.AttentivePooling",
        "sum_t softmax_t(score(q, h_t)) h_t; score content, additive, location, general, dot, scaled-dot",
        "O(n m)",
        "Bahdanau et al. 2015; Luong et al. 2015",
    ),
}


def system(name: str) -> type[TokenEncoder]:
    """Return the module class of a system, to be called as ``(tokenizer, dimension, weights=..., **options)``."""
    if name not in SYSTEMS:
        raise unknown_name("encoder", name, SYSTEMS)
    home, _, kind = SYSTEMS[name].kind.rpartition(".")
    return cast("type[TokenEncoder]", getattr(import_module(f"ctx_embed.{home}"), kind))


def option_defaults(name: str) -> dict[str, Any]:
    """Return the options of a system, excluding its dimension, and their defaults."""
    from ctx_embed.systems.encoder import TableOptions

    parameters = inspect.signature(system(name)).parameters.values()
    own = {
        option.name: option.default
        for option in parameters
        if option.kind is option.KEYWORD_ONLY and option.name not in TableOptions.__annotations__
    }
    return {**own, "max_seq_length": None}


def require_options(name: str, options: Iterable[str]) -> None:
    """Raise an InputError for a system that is unknown, or an option that it does not have."""
    known = option_defaults(name)
    for option in options:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known)


def without_vocabulary(name: str, dimension: int, **options: Any) -> TokenEncoder:
    """Return the system with a table of one entry, to count its other parameters or to check its options."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return system(name)(Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")), dimension, **options)


def parameter_count(module: TokenEncoder) -> int:
    """Return the number of parameters of a system, excluding its tables."""
    tables = {id(getattr(module, table).weight) for table in module.tables}
    return sum(parameter.numel() for parameter in module.parameters() if id(parameter) not in tables)


def listing(dimension: int) -> list[dict[str, Any]]:
    """Return name, description, parameters for m = ``dimension`` and options of each system."""
    return [
        {
            "name": name,
            **described._asdict(),
            "parameter_count": parameter_count(without_vocabulary(name, dimension)),
            "options": option_defaults(name),
        }
        for name, described in SYSTEMS.items()
    ]


def untrained(
    name: str,
    tokenizer: Tokenizer | PreTrainedTokenizerBase | None = None,
    dimension: int | None = None,
    seed: int = 0,
    **options: Any,
) -> SentenceTransformer:
    """Return a SentenceTransformer with randomly initialised weights and l2-normalised embeddings.

    Args:
        tokenizer: its entries get a random table; None takes the default model's tokenizer and table.
        dimension: m; None takes 256, or the dimension of the default model's table.
        seed: seed of all random weights; torch's own generator keeps its state.

    Raises:
        InputError: an unknown name or option, or another dimension than the default model's table has.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    from ctx_embed.modules import Contextualizer

    require_options(name, options)
    phrases = weights = labelled_texts = None
    if tokenizer is None:
        shipped = Contextualizer.load(str(DEFAULT_MODEL), local_files_only=True)
        tokenizer, phrases, weights = shipped.backend_tokenizer, shipped.phrases, shipped.embedding.weight.detach()
        if dimension not in (None, shipped.dimension):
            raise InputError(
                f"dimension must be {shipped.dimension} for the default model's token table, got {dimension}; leave it "
                "out, or give a tokenizer for a randomly initialised table"
            )
        dimension, labelled_texts = shipped.dimension, shipped.labelled_texts
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = system(name)(tokenizer, dimension or 256, phrases=phrases, weights=weights, **options)
    module.labelled_texts = labelled_texts
    return SentenceTransformer(modules=[module, Normalize()], device="cpu")
