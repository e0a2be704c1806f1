"""Second-order attention in place of mean pooling: a Contextualizer over the token embeddings of any module."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sentence_transformers.base.modules.module import Module
from torch import Tensor
from typing_extensions import Self

from ctx_embed.errors import InputError
from ctx_embed.modules.second_order_steps import SecondOrderSteps
from ctx_embed.modules.token_encoder import OF_HUB, requested_dtype


class ContextualizerPooling(Module):
    """K steps of second-order attention over the ``token_embeddings`` of the module before it.

    The same steps as :class:`ctx_embed.Contextualizer`, which is this pooling over a plain token table; after a
    Transformer it replaces sentence-transformers' ``Pooling``. It is initialised as a layer-normalised mean.

    Args:
        dimension: m, the features of a token embedding and of the result.
        steps: K.
        rank: u of the attention's factors.
        positions: ``none``, ``relative`` or ``absolute``.
        scale: ``mean`` or ``sum``.
        initial_context: ``ones``, ``learned`` or ``uniform``.

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

        Args:
            features: ``token_embeddings`` (B, longest, m) and ``attention_mask`` (B, longest); or, if the module before
                packs its inputs, (1, N, m) and ``cu_seq_lens_q`` (B + 1,). A uniform first context also needs
                ``input_ids``.
            **kwargs: not read.

        Raises:
            InputError: token embeddings of another dimension.
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
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, Path(output_path) / "model.safetensors")

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
