"""The Contextualizer as the first module of a SentenceTransformer."""

from itertools import groupby
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ctx_embed import second_order
from ctx_embed.modules.contextualizer_pooling import SecondOrderSteps
from ctx_embed.modules.token_encoder import TokenEncoder, as_int8
from ctx_embed.numpy_model.embedder import PackedContextualizer
from ctx_embed.numpy_model.saved import Tensors, TokenTable, require_fitting

# Documents with more tokens than this are summed block by block, which bounds memory.
LONG_DOCUMENT_TOKENS = 1024
# Number of values of each parameter that are sampled to detect changes.
SAMPLED_VALUES = 256


class Contextualizer(TokenEncoder):
    """Tokenizer, token table and K steps of second-order attention: text in, c^K out.

        x_i = e(w_i) * p(i)
        a_i^k = W_k (U_k x_i * V_k c^{k-1}) + b_k
        c^k = c^{k-1} + LayerNorm(sum_i a_i^k * x_i)
        sentence embedding = c^K

    Shapes: x_i, a_i^k, b_k and c^k (m,); U_k, V_k (u, m); W_k (m, u). Parameters: K (3 u m + 3 m), and m each for
    learned positions and a learned c^0. Cost: O(n u m) per step for n tokens. No special tokens are added. If the
    tokenizer knows too few words of a text, the text keeps c^0, or is embedded as zeros if a ``Normalize`` follows.
    Train with a learning rate of about 1e-3; with 5e-5, usual for Transformers, the parameters hardly change.

    Args:
        tokenizer: one of the ``tokenizers`` library, or a fast tokenizer of transformers.
        dimension: m, the features of the embedding.
        steps: K.
        rank: u of the attention's factors.
        positions: ``none`` (order is not seen), ``relative`` (i / n) or ``absolute`` (the paper's i).
        scale: ``mean`` (position weights average 1) or ``sum`` (they sum to 1, the paper's).
        initial_context: c^0: ``ones``, ``learned`` or ``uniform`` (random, seeded by the text itself).
        max_seq_length: maximum tokens read per text, None for all; you are warned if a text is cut.
        phrases: (P, 2) pairs of ids that are entries themselves, see :class:`ctx_embed.text.tokenizer.Phrases`.
        weights: (entries, dimension) token table, with a row for each entry of the tokenizer and each phrase; None
            initialises it randomly, normal with standard deviation 0.03.

    Raises:
        InputError: a size below 1, an unknown option, a table of another shape, a tokenizer of another kind.

    Source: Maupome & Meurs (2022), Information 13(6):290.
    """

    config_file_name = "contextualizer_config.json"
    weight_axes = ("step", "token")
    # c^K, a sum of K layer-normalised updates, is so large that gradients through a random head would be mostly noise.
    first_head = "zeros"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int = 256,
        *,
        steps: int = 3,
        rank: int = 64,
        positions: str = "none",
        scale: str = "mean",
        initial_context: str = "ones",
        max_seq_length: int | None = None,
        phrases: Tensor | np.ndarray | None = None,
        weights: Tensor | np.ndarray | None = None,
    ) -> None:
        super().__init__(tokenizer, dimension, max_seq_length=max_seq_length, phrases=phrases, weights=weights)
        self.attention = SecondOrderSteps(
            dimension, steps=steps, rank=rank, positions=positions, scale=scale, initial_context=initial_context
        )
        self.steps = steps
        self.rank = rank
        self.positions = positions
        self.scale = scale
        self.initial_context = initial_context
        # Ids seed a uniform first context.
        self.ids_may_be_renumbered = initial_context != "uniform"
        self._held: tuple[list[Any], PackedContextualizer] | None = None

    @classmethod
    def require_fitting(cls, config: dict[str, Any], tensors: Tensors, tokenizer: Tokenizer) -> None:
        """Refuse options that do not fit the stored tensors; the same check as in NumPy."""
        require_fitting(config, tensors.path.with_name(cls.config_file_name), tensors, tokenizer)

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return c^K of packed documents, (B, m), computed by the kernel if on a CPU without gradients."""
        weight = self.embedding.weight
        if torch.is_grad_enabled():
            self._held = None
        elif self.runs_without_torch:
            packed = self.without_torch()
            return torch.from_numpy(packed.embed(ids.numpy(), np.array(lengths, np.int64)))
        # Each long document by itself, the others together.
        groups: list[list[int]] = []
        for is_long, run in groupby(lengths, lambda length: length > LONG_DOCUMENT_TOKENS):
            of_run = list(run)
            groups += [[length] for length in of_run] if is_long else [of_run]
        steps, parts = self.attention.parameters_of_steps, []
        for part, group in zip(ids.split([sum(group) for group in groups]), groups, strict=True):
            offsets = torch.tensor([0, *group], device=ids.device).cumsum(0)
            first = self.attention.first_context(part, offsets)
            if group[0] > LONG_DOCUMENT_TOKENS:
                how = {"kind": self.positions, "scale": self.scale}
                # Sums over a long text need float32, even in mixed-precision training.
                with torch.autocast(weight.device.type, enabled=False):
                    context = second_order.long_document(
                        weight.__getitem__, part, first[0], steps, self.attention.slopes, **how
                    )[None]
            elif self.positions != "none" or self.scale != "mean":
                context = self.attention(self.embedding(part), part, offsets)[-1]
            else:
                # Without position weights x_i is e(w_i), so its products are computed once per vocabulary entry.
                entries, numbers = torch.unique(part, return_inverse=True)
                shared = self.initial_context != "uniform"
                table = self.embedding(entries)
                context = second_order.over_vocabulary(table, numbers, offsets, first, steps, shared=shared)
            parts.append(context.to(weight.dtype))
        return torch.cat(parts) if parts else weight.new_zeros(0, self.dimension)

    def begin_as_mean(self) -> None:
        """Initialise as the layer-normalised sum of the tokens, see :meth:`SecondOrderSteps.begin_as_mean`."""
        self.attention.begin_as_mean()

    def token_embeddings(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return a_i^K * x_i of packed documents, (N, m): what the last step sums and normalises."""
        offsets = torch.tensor([0, *lengths], device=ids.device).cumsum(0)
        embeddings = self.embedding(ids)
        contexts = self.attention(embeddings, ids, offsets)
        x = self.attention.weighted(embeddings, offsets)
        U, V, W, b, _, _ = (parameter[-1] for parameter in self.attention.parameters_of_steps)
        ux, vc = x @ U.T, contexts[-2].to(x) @ V.T
        a: Tensor = second_order.attended(ux, vc, second_order.document_ids(offsets), W, b)
        return a * x

    @torch.no_grad()
    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return the exact share of each token in each step's update z^k of its text, (K, n); a row sums to 1."""
        packed = self.without_torch()
        return [torch.from_numpy(packed.contributions(part.cpu().numpy())[1]) for part in ids.split(lengths)]

    @property
    def runs_without_torch(self) -> bool:
        """Whether :meth:`without_torch` computes the same: in float32 on a CPU."""
        weight = self.embedding.weight
        return weight.device.type == "cpu" and weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")

    def without_torch(self) -> PackedContextualizer:
        """Return the same model for inference on a CPU, made again if a parameter has changed.

        It shares the token table of a float32 model, unless int8 rows represent it exactly: they are read in less time.
        """
        # A key that changes with the parameters, at a cost that does not depend on their size: addresses change if one
        # is moved or loaded, versions with every in-place operation that torch records, and sums of 256 values with
        # other operations on all values (``parameter.data.mul_``, a fused optimizer).
        key: list[Any] = []
        # The same parameters as self.parameters(), which takes longer than computing the key.
        for parameter in (self.embedding.weight, *self.attention._parameters.values()):
            if parameter is None:
                continue
            stride = max(1, parameter.numel() // SAMPLED_VALUES)
            if parameter.device.type == "cpu" and parameter.dtype == torch.float32:
                # For few values NumPy takes a third of torch's time.
                sampled = float(parameter.detach().numpy().reshape(-1)[::stride].sum(dtype=np.float64))
            else:
                sampled = parameter.detach().flatten()[::stride].double().sum().item()
            key += [parameter.data_ptr(), 0 if parameter.is_inference() else parameter._version, sampled]
        if self._held is None or self._held[0] != key:
            named = {name: value.detach().float().cpu().numpy() for name, value in self.attention.named_parameters()}
            floats = self.embedding.weight.detach().float().cpu()
            rows = as_int8(floats)
            table = TokenTable(rows[0].numpy(), rows[1].float()[:, 0].numpy()) if rows else TokenTable(floats.numpy())
            self._held = key, PackedContextualizer(self.get_config_dict(), table, named)
        return self._held[1]

    def __getstate__(self) -> dict[str, Any]:
        # Copies, also in other processes, compute their own products.
        return {**self.__dict__, "_held": None}
