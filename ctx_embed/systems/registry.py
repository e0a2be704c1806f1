"""The systems by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from ctx_embed.errors import unknown_name
from ctx_embed.modules import Contextualizer
from ctx_embed.modules.token_encoder import TokenEncoder
from ctx_embed.systems.attentive import AttentivePooling
from ctx_embed.systems.bigru import BiGru
from ctx_embed.systems.cnn import Convolution
from ctx_embed.systems.dan import DeepAveraging
from ctx_embed.systems.encoder import TableOptions
from ctx_embed.systems.lama import Bilinear, Lama, LamaCtx
from ctx_embed.systems.mean import MeanEmbedding
from ctx_embed.systems.san import StructuredSelfAttention
from ctx_embed.systems.self_attention import ParametricSelfAttention, SelfAttention
from ctx_embed.systems.transformer import TransformerEncoder, UseTransformer

SYSTEMS: dict[str, type[TokenEncoder]] = {
    "contextualizer": Contextualizer,
    "mean": MeanEmbedding,
    "lama": Lama,
    "lama-ctx": LamaCtx,
    "bilinear": Bilinear,
    "san": StructuredSelfAttention,
    "transformer": TransformerEncoder,
    "dan": DeepAveraging,
    "use-transformer": UseTransformer,
    "bigru": BiGru,
    "cnn": Convolution,
    "self-attention": SelfAttention,
    "self-attention-parametric": ParametricSelfAttention,
    "attentive": AttentivePooling,
}


def system(name: str) -> type[TokenEncoder]:
    """Return the module class of a system, to be called as ``(tokenizer, dimension, weights=..., **options)``.

    Raises:
        InputError: an unknown name.
    """
    if name not in SYSTEMS:
        raise unknown_name("encoder", name, SYSTEMS)
    return SYSTEMS[name]


def option_defaults(name: str) -> dict[str, Any]:
    """Return the options of a system, excluding its dimension, and their defaults.

    Raises:
        InputError: an unknown name.
    """
    parameters = inspect.signature(system(name)).parameters.values()
    own = {
        option.name: option.default
        for option in parameters
        if option.kind is option.KEYWORD_ONLY and option.name not in TableOptions.__annotations__
    }
    return {**own, "max_seq_length": None}


def require_options(name: str, options: Iterable[str]) -> None:
    """Raise an error for options that the system does not have.

    Raises:
        InputError: an unknown system or option.
    """
    known = option_defaults(name)
    for option in options:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known)


def without_vocabulary(name: str, dimension: int, **options: Any) -> TokenEncoder:
    """Return the system over a table of one entry, to count its other parameters or to check its options.

    Raises:
        InputError: an unknown name, or an option's value that does not fit.
    """
    return system(name)(Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")), dimension, **options)


def parameter_count(module: TokenEncoder) -> int:
    """Return the number of parameters of a system, excluding its tables."""
    tables = {id(getattr(module, table).weight) for table in module.tables}
    return sum(parameter.numel() for parameter in module.parameters() if id(parameter) not in tables)
