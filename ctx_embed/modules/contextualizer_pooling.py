"""K steps of second-order attention with their parameters, and a pooling by them over the tokens of any module."""

from typing import Any

import torch
from sentence_transformers.base.modules.module import Module
from torch import Tensor, nn
from typing_extensions import Self

from ctx_embed import second_order
from ctx_embed.errors import InputError, unknown_name
from ctx_embed.modules.token_encoder import OF_HUB, requested_dtype
from ctx_embed.numpy_model.saved import CHOICES
from ctx_embed.options import require_size
from ctx_embed.second_order import Steps


class SecondOrderSteps(nn.Module):
    """K steps of second-order attention over packed tokens, with position weights and a first context.

    Source: Maupome & Meurs (2022).
    """

    def __init__(
        self, dimension: int, *, steps: int, rank: int, positions: str, scale: str, initial_context: str
    ) -> None:
        super().__init__()
        for name, value in (("dimension", dimension), ("steps", steps), ("rank", rank)):
            require_size(name, value)
        for kind, name in (("positions", positions), ("scale", scale), ("initial_context", initial_context)):
            if name not in CHOICES[kind]:
                raise unknown_name(kind, name, CHOICES[kind])
        self.positions = positions
        self.scale = scale
        self.initial_context = initial_context
        # Random weights preserve variances; position weights start equal.
        self.U = nn.Parameter(torch.empty(steps, rank, dimension).normal_(std=dimension**-0.5))
        self.V = nn.Parameter(torch.empty(steps, rank, dimension).normal_(std=dimension**-0.5))
        self.W = nn.Parameter(torch.empty(steps, dimension, rank).normal_(std=rank**-0.5))
        self.b = nn.Parameter(torch.ones(steps, dimension))
        self.gain = nn.Parameter(torch.ones(steps, dimension))
        self.bias = nn.Parameter(torch.zeros(steps, dimension))
        # Unused parameters are None, so that every saved tensor affects the embedding.
        self.s = nn.Parameter(torch.zeros(dimension)) if positions != "none" else None
        self.c0 = nn.Parameter(torch.ones(dimension)) if initial_context == "learned" else None

    @torch.no_grad()
    def begin_as_mean(self) -> None:
        """Set W = 0 and b = 1, so that the output is the layer-normalised sum of the tokens, a static embedding."""
        self.W.zero_()
        self.b.fill_(1)

    @property
    def parameters_of_steps(self) -> Steps:
        """Return the parameters of the K steps in the form of :mod:`ctx_embed.second_order`."""
        return Steps(self.U, self.V, self.W, self.b, self.gain, self.bias)

    @property
    def slopes(self) -> Tensor:
        """The slopes (m,) of the position weights; arbitrary if there are no position weights."""
        return self.b[0] if self.s is None else self.s

    def first_context(self, input_ids: Tensor, offsets: Tensor) -> Tensor:
        """Return c^0 of each document, (B, m)."""
        learned = self.b[0] if self.c0 is None else self.c0
        context: Tensor = second_order.initial_context(self.initial_context, learned, input_ids, offsets)
        return context

    def weighted(self, embeddings: Tensor, offsets: Tensor) -> Tensor:
        """Return the weighted tokens x_i = e(w_i) * p(i), (N, m)."""
        if self.positions == "none" and self.scale == "mean":
            return embeddings
        weights: Tensor = second_order.position_weights(offsets, self.slopes, kind=self.positions, scale=self.scale)
        return embeddings * weights.to(embeddings.dtype)

    def forward(self, embeddings: Tensor, input_ids: Tensor, offsets: Tensor) -> Tensor:
        """Return c^0..c^K of packed documents, (K + 1, B, m), in float32 or better.

        ``embeddings`` are e(w_i), (N, m); only the uniform first context reads ``input_ids``.
        """
        context = self.first_context(input_ids, offsets)
        x = self.weighted(embeddings, offsets)
        contexts: Tensor = second_order.direct(x, offsets, context, self.parameters_of_steps)
        return contexts


class ContextualizerPooling(Module):
    """K steps of second-order attention over the ``token_embeddings`` of the module before it.

    The same steps as :class:`ctx_embed.Contextualizer`, which is this pooling over a plain token table; after a
    Transformer it replaces sentence-transformers' ``Pooling``. It is initialised as a layer-normalised mean.

    Args:
        dimension: m, the features of a token embedding and of the result.
        steps, rank, positions, scale, initial_context: as for :class:`ctx_embed.Contextualizer`.

    Raises:
        InputError: a size below 1 or an unknown option.

    Source: Maupome & Meurs (2022), Information 13(6):290.
    """

    config_file_name = "config.json"
    config_keys = ["dimension", "steps", "rank", "positions", "scale", "initial_context"]

    def __init__(
        self,
        dimension: int,
        *,
        steps: int = 3,
        rank: int = 64,
        positions: str = "none",
        scale: str = "mean",
        initial_context: str = "ones",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.attention = SecondOrderSteps(
            dimension, steps=steps, rank=rank, positions=positions, scale=scale, initial_context=initial_context
        )
        self.attention.begin_as_mean()
        self.dimension = dimension
        self.steps = steps
        self.rank = rank
        self.positions = positions
        self.scale = scale
        self.initial_context = initial_context

    def get_embedding_dimension(self) -> int:
        """Return the number of features m of a sentence embedding."""
        return self.dimension

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Add ``sentence_embedding`` c^K, (B, m) in the dtype of the token embeddings, to the features.

        These have ``token_embeddings`` (B, longest, m) and ``attention_mask`` (B, longest); or, if the module before
        packs its inputs, (1, N, m) and ``cu_seq_lens_q`` (B + 1,). A uniform first context also needs ``input_ids``.
        """
        tokens = features["token_embeddings"]
        if tokens.shape[-1] != self.dimension:
            raise InputError(
                f"token embeddings must have {self.dimension} features, got {tokens.shape[-1]}; set the dimension of "
                "ContextualizerPooling to that of the module before it"
            )
        if "cu_seq_lens_q" in features:
            offsets = features["cu_seq_lens_q"].to(torch.int64)
            kept = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        else:
            kept = features["attention_mask"].bool()
            offsets = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.sum(1).cumsum(0)])
        input_ids = features["input_ids"][kept] if "input_ids" in features else offsets
        if self.initial_context == "uniform" and "input_ids" not in features:
            raise InputError("the features must have input_ids, which seed initial_context='uniform'; got none")
        contexts = self.attention(tokens[kept].to(self.attention.W.dtype), input_ids, offsets)
        features["sentence_embedding"] = contexts[-1].to(tokens.dtype)
        return features

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write ``config.json`` and ``model.safetensors`` into a folder."""
        if not safe_serialization:
            raise InputError("safe_serialization=False asks for a pickle; weights are saved as safetensors only")
        self.save_config(output_path)
        self.save_torch_weights(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:  # type: ignore[override]
        """Read what :meth:`save` wrote; the arguments are those of :meth:`ctx_embed.Contextualizer.load`."""
        hub = {"subfolder": subfolder, **{name: kwargs[name] for name in OF_HUB if name in kwargs}}
        config = cls.load_config(model_name_or_path, **hub)
        if not config:
            raise InputError(f"{model_name_or_path}: no {cls.config_file_name}, not a saved {cls.__name__}")
        module = cls(**config)
        module.load_state_dict(cls.load_torch_weights(model_name_or_path, **hub))
        return module.to(requested_dtype(kwargs.get("model_kwargs")))
