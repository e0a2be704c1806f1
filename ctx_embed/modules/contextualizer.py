"""The Contextualizer as the first module of a SentenceTransformer."""

from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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
        # Copies of the steps, and the model of them, see :meth:`without_torch`.
        self._held: tuple[dict[str, NDArray[Any]], PackedContextualizer] | None = None

    @classmethod
    def require_fitting(cls, config: dict[str, Any], tensors: Tensors, tokenizer: Tokenizer) -> None:
        """Refuse options that do not fit the stored tensors; the same check as in NumPy."""
        require_fitting(config, tensors.path.with_name(cls.config_file_name), tensors, tokenizer)

    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return c^K of packed documents, (B, m), computed by the kernel if on a CPU without gradients."""
        weight = self.embedding.weight
        if not torch.is_grad_enabled() and self.runs_without_torch:
            packed = self.without_torch(ids.numpy())
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
                        self.embedding, part, first[0], steps, self.attention.slopes, **how
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
        packed = self.without_torch(ids.cpu().numpy())
        return [torch.from_numpy(packed.contributions(part.cpu().numpy())[1]) for part in ids.split(lengths)]

    @property
    def runs_without_torch(self) -> bool:
        """Whether :meth:`without_torch` computes the same: in float32 on a CPU."""
        weight = self.embedding.weight
        return weight.device.type == "cpu" and weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")

    def without_torch(self, ids: NDArray[Any]) -> PackedContextualizer:
        """Return the same model for inference on a CPU on texts of these ids.

        It shares the token table of a float32 model, unless int8 rows represent it exactly: they are read in less time.
        Such a model is held, with products of its rows, and used as long as the steps and the rows of ``ids`` are equal
        to those of the module, whatever else may have changed them.
        """
        tensors = {**self.attention.parameters_of_steps._asdict(), "s": self.attention.s, "c0": self.attention.c0}
        steps = {name: tensor.detach().float().cpu().numpy() for name, tensor in tensors.items() if tensor is not None}
        floats = self.table.detach().float().cpu()
        if self._held is not None and all(np.array_equal(steps[name], held) for name, held in self._held[0].items()):
            entries, packed = np.unique(ids), self._held[1]
            if np.array_equal(packed.table.rows(entries), floats.numpy()[entries]):
                return packed
        rows = as_int8(floats)
        if rows is None:
            # Products of rows in shared memory would not follow a change.
            self._held = None
            return PackedContextualizer(self.get_config_dict(), TokenTable(floats.numpy()), steps)
        copies = {name: value.copy() for name, value in steps.items()}
        table = TokenTable(rows[0].numpy(), rows[1].float()[:, 0].numpy())
        packed = PackedContextualizer(self.get_config_dict(), table, copies)
        self._held = copies, packed
        return packed

    def __getstate__(self) -> dict[str, Any]:
        # Copies, also in other processes, compute their own products.
        return {**self.__dict__, "_held": None}
