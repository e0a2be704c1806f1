"""The base class of all encoders over a token table: text to packed ids, the table, saving and loading.

Token tables are saved as int8 with a scale for each row if that represents them exactly (255 levels a row).
"""

import json
import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformerModelCardData
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.modules.input_module import InputModule
from tokenizers import Tokenizer, decoders, processors
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from typing_extensions import Self

from ctx_embed.errors import InputError, UnknownTextsWarning, described, quoted
from ctx_embed.files import replaced_file
from ctx_embed.numpy_model.saved import LABELLED_TEXTS, PHRASES, SCALES, TABLE, Tensors, read_json, read_tokenizer
from ctx_embed.options import require_size
from ctx_embed.saved_card import Card
from ctx_embed.text.tokenizer import Phrases, TextTokenizer, require_entries, require_no_gaps

# Standard deviation of a randomly initialised token table. LayerNorm removes its scale from the output, so it only sets
# how fast embeddings move from their initial values: from scratch on MR with the paper's protocol, accuracy is 74 and
# 70 % with 1 (K = 1, 5) and 77 % with 0.03.
DRAWN_DEVIATION = 0.03
# The value of ``max_seq_length`` without a limit: other programs compute with it and expect an integer.
NO_LIMIT = 2**31 - 1
# A batch of more token positions than this, most of them padding, is packed instead.
PADDED_TOKENS = 1 << 20
# Rows of a table that are compared with int8 rows at a time, which bounds memory.
CHECKED_ROWS = 4096
# What the folders of a trainer's checkpoints are called; a resumed training needs the weights as they were.
CHECKPOINT = "checkpoint-"
# Largest absolute value of an int8 row.
LEVELS = 127
# Names of parameters that PEFT's adapters, torch's parametrizations and its pruning put in a parameter's place.
ADDED = re.compile(r"\b(base_layer|parametrizations)\.|_orig$")
# A limit that no text exceeds; transformers warns about longer texts.
UNLIMITED = 10**30
PADDING_TOKENS = ("[PAD]", "<pad>")
# Arguments of ``load`` that say where a model is on the hub.
OF_HUB = ("token", "cache_folder", "revision", "local_files_only")
# Arguments of encoders that are not saved in the configuration, or are saved last in it.
NOT_SAVED = ("tokenizer", "phrases", "weights", "max_seq_length")


def requested_dtype(model_kwargs: dict[str, Any] | None) -> torch.dtype:
    """Return the dtype that ``model_kwargs`` asks for, as a torch dtype or its name; float32 if none is given."""
    wanted = (model_kwargs or {}).get("dtype") or (model_kwargs or {}).get("torch_dtype") or torch.float32
    dtype = getattr(torch, wanted, None) if isinstance(wanted, str) else wanted
    if wanted == "auto":
        return torch.float32
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"dtype must be a floating dtype, got {quoted(wanted)}; use float32, float16 or bfloat16")
    return dtype


def fast_tokenizer(tokenizer: Tokenizer | PreTrainedTokenizerBase) -> Tokenizer:
    """Return a copy of the tokenizer with padding and truncation off."""
    found = getattr(tokenizer, "original", None) or getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(found, Tokenizer):
        raise InputError(
            f"tokenizer must be a tokenizers.Tokenizer, got {type(found).__name__}; use Tokenizer.from_file(...)"
        )
    copy = Tokenizer.from_str(found.to_str())
    copy.no_padding()
    copy.no_truncation()
    require_no_gaps(copy)
    return copy


def quantized(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest int8 rows (rows, m) and float16 scales (rows, 1); level times scale is exact in float32."""
    table = table.float()
    scales = (table.abs().amax(1, keepdim=True) / LEVELS).half()
    smallest = torch.finfo(torch.float16).smallest_normal
    scales = torch.where(scales < smallest, scales.new_full((), smallest), scales)
    levels = (table / scales.float()).round().clamp(-LEVELS, LEVELS)
    return levels.to(torch.int8), scales


def dequantized(levels: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 table (rows, m) of int8 rows and their scales."""
    return levels.float() * scales.float()


def as_int8(table: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the int8 rows and scales that represent every number of a float32 table exactly, or None."""
    found = []
    for block in table.split(CHECKED_ROWS):
        found.append(quantized(block))
        if not torch.equal(dequantized(*found[-1]), block):
            return None
    levels, scales = zip(*found, strict=True)
    return torch.cat(levels), torch.cat(scales)


class Features(dict[str, Tensor]):
    """Features with ``token_embeddings`` (B, longest, m), and ``attention_mask``, computed when they are asked for.

    ``lengths`` (B,) are the tokens in each text; ``tokens`` returns those of all texts one after the other, (N, m).
    Copies, such as those that accelerate makes of a class given a dict alone, hold what was computed before.
    """

    def __init__(
        self, features: dict[str, Tensor], lengths: Tensor | None = None, tokens: Callable[[], Tensor] | None = None
    ) -> None:
        super().__init__(features)
        self._lengths, self._tokens = lengths, tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return Features, (dict(self),)

    def __missing__(self, name: str) -> Tensor:
        if self._lengths is None or self._tokens is None or name not in ("token_embeddings", "attention_mask"):
            raise KeyError(name)
        longest = int(self._lengths.max()) if len(self._lengths) else 0
        mask = torch.arange(longest, device=self._lengths.device) < self._lengths[:, None]
        # What a module reads from here on is padded, also if the input was packed.
        self.pop("cu_seq_lens_q", None)
        self["attention_mask"] = mask.to(torch.int64)
        if name == "token_embeddings":
            tokens = self._tokens()
            self[name] = tokens.new_zeros(*mask.shape, tokens.shape[1])
            self[name][mask] = tokens
        return self[name]


def _reads_loaded_phrases(module: nn.Module, keys: Any) -> None:
    assert isinstance(module, TokenEncoder)
    known = getattr(module.text_tokenizer, "phrases", None)
    if module.phrases is not None and known and not np.array_equal(module.phrases.cpu().numpy(), known.pairs):
        module.tokenizer = module.backend_tokenizer


class TokenEncoder(InputModule):
    """A sentence-transformers input module over a token table; subclasses define how packed tokens become embeddings.

    Its arguments are explained at :class:`ctx_embed.Contextualizer`, which adds those of its steps.
    """

    # The axes of :meth:`attention_weights`, and the tables, which do not count as parameters of the method.
    weight_axes: tuple[str, ...] = ("head", "token")
    tables: tuple[str, ...] = ("embedding",)
    # The initial weights of a linear head over a randomly initialised encoder: ``random`` (as in torch) or ``zeros``.
    first_head: str = "random"
    # Whether ids are only used to look up rows of the table, so that rows may be renumbered.
    ids_may_be_renumbered: bool = False
    # Ascending hashes of the labelled texts in the training data, see :mod:`ctx_embed.training.labelled_texts`; saved
    # with the model, but not part of its fingerprint.
    labelled_texts: NDArray[np.uint64] | None = None
    # Whether a Normalize follows; if so, a text that the model cannot read is embedded as zeros.
    normalized: bool = False
    # The folder from which the encoder was loaded.
    source: Path | None = None
    # How a float32 table is saved: as int8 rows if the encoder was loaded from such, else unchanged.
    store: Literal["int8", "float32"] = "float32"

    def __init__(
        self,
        tokenizer: Tokenizer | PreTrainedTokenizerBase,
        dimension: int,
        *,
        max_seq_length: int | None = None,
        phrases: Tensor | np.ndarray | None = None,
        weights: Tensor | np.ndarray | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        require_size("dimension", dimension)
        self.dimension = dimension
        self._view: PreTrainedTokenizerFast | None = None
        self.max_seq_length = max_seq_length
        # A tensor of the module's state, so that phrases are saved and hashed with the table whose rows they define.
        self.phrases: Tensor | None
        self.register_buffer("phrases", None if phrases is None else torch.as_tensor(phrases).to(torch.int32))
        self.tokenizer = tokenizer
        self.register_load_state_dict_post_hook(_reads_loaded_phrases)  # type: ignore[no-untyped-call]
        shape = (self.entries, dimension)
        if weights is not None and np.shape(weights) != shape:
            raise InputError(f"weights must have shape {shape} (tokenizer, dimension), got {tuple(np.shape(weights))}")
        # Use the dtype of all other parameters, whatever numpy's default is.
        if weights is None:
            weights = torch.randn(shape) * DRAWN_DEVIATION
        table = torch.as_tensor(weights).to(torch.get_default_dtype(), copy=True)
        self.embedding = nn.Embedding(*shape, _weight=table)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # The arguments of ``__init__`` that are saved as the module's configuration.
        options = [option.name for option in signature(cls).parameters.values() if option.kind != option.VAR_KEYWORD]
        cls.config_keys = [*(name for name in options if name not in NOT_SAVED), "max_seq_length"]

    @abstractmethod
    def embed(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the embeddings (B, m) of documents whose ids (N,) are packed; their ``lengths`` (B,) sum to N."""

    def begin_as_mean(self) -> None:
        """Initialise the parameters so that embeddings are (weighted) means of tokens, if the system can."""

    def regularizer(self) -> Tensor | float:
        """Return the encoder's own loss term, a scalar, for the last training batch. A second call returns 0."""
        return 0.0

    def token_embeddings(self, ids: Tensor, lengths: list[int]) -> Tensor:
        """Return the contextualised tokens of packed documents, (N, m); arguments are those of :meth:`embed`."""
        raise InputError(f"{type(self).__name__} has no token embeddings; ask for output_value='sentence_embedding'")

    def attention_weights(self, ids: Tensor, lengths: list[int]) -> list[Tensor]:
        """Return how much each token contributes to its text's embedding, see :func:`ctx_embed.attention_weights`."""
        raise InputError(f"{type(self).__name__} has no attention weights to show")

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The tokenizer, padding and truncation off."""
        return self.text_tokenizer.tokenizer

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A tokenizer of transformers over a copy of the model's, made at first use. Setting it replaces the model's.

        A text's tokens are those of the tokenizer (phrases are not merged) between two padding tokens, since some
        programs, such as LangChain's token splitter, drop the first and the last id. The model's own ids are those of
        :meth:`preprocess`.
        """
        if self._view is not None:
            return self._view
        content = self.backend_tokenizer.to_str()
        copy, model = Tokenizer.from_str(content), json.loads(content)["model"]
        padding = next((token for token in PADDING_TOKENS if copy.token_to_id(token) is not None), None)
        if copy.post_processor is None and padding is not None:
            copy.post_processor = processors.TemplateProcessing(
                single=f"{padding} $A {padding}",
                pair=f"{padding} $A {padding} $B {padding}",
                special_tokens=[(padding, copy.token_to_id(padding))],
            )
        if copy.decoder is None and model["type"] == "WordPiece":
            copy.decoder = decoders.WordPiece(prefix=model["continuing_subword_prefix"])
        unknown = model.get("unk_token")
        self._view = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=copy,
            model_max_length=UNLIMITED,
            **({} if padding is None else {"pad_token": padding}),
            **({} if unknown is None else {"unk_token": unknown}),
        )
        # Encoders that are given the view read as this model does, see :func:`fast_tokenizer`.
        self._view.original = self.backend_tokenizer
        self._entries_of_view = copy.get_vocab_size(), len(copy.get_added_tokens_decoder())
        return self._view

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | PreTrainedTokenizerBase) -> None:
        own = fast_tokenizer(tokenizer)
        entries = own.get_vocab_size()
        phrases = None if self.phrases is None else Phrases(self.phrases.cpu(), entries)
        rows = entries + (0 if phrases is None else len(phrases.pairs))
        if "embedding" in self._modules and rows != self.embedding.num_embeddings:
            raise InputError(
                f"the tokenizer must have {self.embedding.num_embeddings} entries like the token table, got {entries}"
            )
        self.text_tokenizer = TextTokenizer(own, phrases)
        self._view = None

    def read(self, texts: Sequence[str], prompt: str | None, limit: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return packed ids and each text's number of ids, see :meth:`TextTokenizer.read`.

        Raises:
            InputError: tokens were added to the tokenizer, or to its view, which the table has no rows for.
        """
        if self._view is not None:
            require_entries(self._view.backend_tokenizer, *self._entries_of_view)
        return self.text_tokenizer.read(texts, prompt, limit)

    @property
    def table(self) -> Tensor:
        """The rows (entries, m) that are read: of the embedding, or what hooks and adapters around it make of them."""
        around = self.embedding._forward_pre_hooks or self.embedding._forward_hooks
        if type(self.embedding) is nn.Embedding and not around:
            return self.embedding.weight
        rows: Tensor = self.embedding(torch.arange(self.entries, device=self.embedding.weight.device))
        return rows

    @property
    def entries(self) -> int:
        """The rows of the token table: the tokenizer's entries and the phrases."""
        return self.backend_tokenizer.get_vocab_size() + (0 if self.phrases is None else len(self.phrases))

    def entry_texts(self) -> list[str]:
        """Return the text of each row of the token table; that of a phrase is its parts separated by spaces."""
        return self.text_tokenizer.entry_texts()

    @property
    def max_seq_length(self) -> int:
        """The maximum number of tokens read per text; 2^31 - 1 if there is no limit. Set it to None to read all."""
        return NO_LIMIT if self._max_seq_length is None else self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        if value is not None:
            require_size("max_seq_length", value)
        self._max_seq_length = None if value == NO_LIMIT else value

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode. The next text without a known token gives a warning again."""
        self._warned = False
        return super().train(mode)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the options that are saved; ``max_seq_length`` is None without a limit."""
        return {**super().get_config_dict(), "max_seq_length": self._max_seq_length}

    def on_model_ready(self, model: BaseModel) -> None:
        """Set a model card that identifies the model to other programs, however the model was made."""
        self.normalized = any(type(module).__name__ == "Normalize" for module in model.children())
        if type(model.model_card_data) is SentenceTransformerModelCardData:
            model.model_card_data.__class__ = Card

    def get_embedding_dimension(self) -> int:
        """Return the number of features m of a sentence embedding."""
        return self.dimension

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """Tokenize texts.

        Returns:
            ``input_ids`` and ``attention_mask``, both (B, longest) int64, padded at the end with 0. If that would be
            mostly padding, as for a book among sentences: packed ``input_ids`` (1, N), and ``cu_seq_lens_q`` (B + 1,),
            the start of each text, which is sentence-transformers' form of flattened inputs. With a prompt also
            ``prompt_length``, the number of its tokens.
        """
        for text in inputs:
            if not isinstance(text, str):
                # The place in the batch would mislead: sentence-transformers sorts the caller's list by length.
                raise InputError(f"each text must be a string, got {described(text)}")
        # What transformers' tokenizers understand of one call's settings.
        settings = {"max_length": kwargs.get("max_length"), **(kwargs.get("processing_kwargs") or {}).get("text", {})}
        limit = self.max_seq_length if settings.get("truncation") is not False else NO_LIMIT
        ids, lengths = self.read(inputs, prompt, settings["max_length"] or limit)
        unread = (lengths == 0).nonzero()[0]
        if len(unread) and not self.training and not self._warned:
            self._warned = True
            texts = [inputs[place] for place in unread]
            warnings.warn(UnknownTextsWarning(texts, len(texts), len(lengths), self.normalized), stacklevel=2)
        # A Pooling after this module may leave the prompt out. It comes last: accelerate counts what comes first.
        of_prompt: dict[str, Any] = {"prompt_length": len(self.read([prompt], None, limit)[0])} if prompt else {}
        padded_size = len(lengths) * int(lengths.max(initial=0))
        if padded_size > PADDED_TOKENS and padded_size > 2 * len(ids):
            offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
            return {"input_ids": torch.from_numpy(ids.astype(np.int64))[None], "cu_seq_lens_q": offsets} | of_prompt
        mask = (np.arange(lengths.max(initial=0)) < lengths[:, None]).astype(np.int64)
        padded = np.zeros_like(mask)
        padded[mask > 0] = ids
        return {"input_ids": torch.from_numpy(padded), "attention_mask": torch.from_numpy(mask)} | of_prompt

    @torch.no_grad()
    def round_table(self) -> None:
        """Round each row of a float32 table to 255 levels, so that it is saved as int8 without a loss."""
        self.embedding.weight.copy_(dequantized(*quantized(self.embedding.weight)))

    # Lengths decide what is computed: torch.compile would compile nearly every batch anew.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Add ``sentence_embedding`` (B, m) to the features, in the module's dtype (float32 for a float16 module)."""
        input_ids = features["input_ids"]
        if "cu_seq_lens_q" in features:
            lengths = features["cu_seq_lens_q"].diff()
            packed = input_ids.flatten()
        else:
            mask = features.get("attention_mask")
            if mask is None:
                mask = torch.ones_like(input_ids)
            lengths = mask.sum(1)
            packed = input_ids[mask.bool()] if int(lengths.sum()) < mask.numel() else input_ids.flatten()
        listed = lengths.tolist()
        embedding = self.embed(packed, listed)
        if self.normalized and 0 in listed:
            embedding = torch.where((lengths > 0).to(embedding.device)[:, None], embedding, embedding.new_zeros(()))
        # Normalize turns float16 zeros, the embedding of a text without tokens, into NaN.
        features["sentence_embedding"] = embedding.float() if embedding.dtype == torch.float16 else embedding
        return Features(features, lengths, lambda: self.token_embeddings(packed, listed))

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the config, ``model.safetensors`` and ``tokenizer.json`` into a folder.

        A table is stored as int8 rows with a scale each if these represent every number exactly. Where :attr:`store` is
        int8, a table that was trained is first rounded to such rows, in memory too, except for a trainer's checkpoint.
        """
        if not safe_serialization:
            raise InputError("safe_serialization=False asks for a pickle; weights are saved as safetensors only")
        self.read([], None, self.max_seq_length)
        self.save_config(output_path)
        folder = Path(output_path)
        tensors = dict(self.state_dict())
        if added := next(filter(ADDED.search, tensors), None):
            raise InputError(
                f"{added} is no parameter of a saved model; merge adapters (in PEFT: merge_and_unload()) and remove "
                "parametrizations and pruning before saving"
            )
        if tensors[TABLE].dtype == torch.float32:
            rows = as_int8(tensors[TABLE])
            if rows is None and self.store == "int8" and not folder.name.startswith(CHECKPOINT):
                self.round_table()
                rows = as_int8(tensors[TABLE])
            tensors |= dict(zip((TABLE, SCALES), rows, strict=True)) if rows else {}
        # Running models may have mapped the file that these weights replace.
        with replaced_file(folder / "model.safetensors") as beside:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, beside)
        self.backend_tokenizer.save(str(folder / "tokenizer.json"))
        if self.labelled_texts is not None:
            np.save(folder / LABELLED_TEXTS, self.labelled_texts)

    @classmethod
    def require_fitting(cls, config: dict[str, Any], tensors: Tensors, tokenizer: Tokenizer) -> None:
        """Refuse options that do not fit the stored tensors, before any memory is allocated for them."""
        layers, stored = config.get("layers"), len(tensors.stored)
        # Even without memory for its parameters, each layer takes time to build.
        if isinstance(layers, int) and layers > stored:
            raise InputError(f"{tensors.path}: must have a tensor for each of {layers:,} layers, got {stored}")
        try:
            with torch.device("meta"):
                wanted = cls(tokenizer, **config).state_dict()
        except InputError:
            raise
        except Exception as error:
            reason, *_ = str(error).split("\n")
            raise InputError(f"{tensors.path.parent}: options that {cls.__name__} cannot use ({reason})") from None
        phrases = len(tensors.stored.get(PHRASES, ()))
        for name, tensor in wanted.items():
            extra = phrases if name == TABLE else 0
            shape = (tensor.shape[0] + extra, *tensor.shape[1:]) if tensor.ndim else ()
            found = tensors.stored[name].shape if name in tensors.stored else "nothing"
            if found != shape:
                raise InputError(f"{tensors.path}: {name} must have shape {shape}, got {found}")

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:  # type: ignore[override]
        """Read what :meth:`save` wrote, from a folder or the hub; arguments as in sentence-transformers.

        Parameters have the ``dtype`` of ``model_kwargs``, or float32, whatever was stored.
        """
        backend = kwargs.get("backend") or "torch"
        if backend != "torch":
            raise InputError(f"backend must be 'torch' for a {cls.__name__}, got {quoted(backend)}; leave it out")
        hub = {"subfolder": subfolder, **{name: kwargs[name] for name in OF_HUB if name in kwargs}}
        paths = []
        for name in ("tokenizer.json", cls.config_file_name, "model.safetensors"):
            path = cls.load_file_path(model_name_or_path, name, **hub)
            if path is None:
                raise InputError(f"{model_name_or_path}: no {name}, not a saved {cls.__name__}")
            paths.append(Path(path))
        tokenizer, config, tensors = read_tokenizer(paths[0]), read_json(paths[1]), Tensors(paths[2])
        cls.require_fitting(config, tensors, tokenizer)
        weights = dict(cls.load_torch_weights(model_name_or_path, **hub))
        if SCALES in weights:
            weights[TABLE] = dequantized(weights[TABLE], weights.pop(SCALES))
        dtype = requested_dtype(kwargs.get("model_kwargs"))
        module = cls(tokenizer, **config, phrases=weights.get(PHRASES), weights=weights[TABLE].to(dtype))
        module.load_state_dict(weights)
        module.store = "int8" if SCALES in tensors.stored else "float32"
        module.source = paths[0].parent
        if known := cls.load_file_path(model_name_or_path, LABELLED_TEXTS, **hub):
            try:
                # A memory map allocates nothing if the header declares an array larger than the file.
                module.labelled_texts = np.array(np.load(known, mmap_mode="r"))
            except (OSError, ValueError, EOFError, SyntaxError, TypeError, OverflowError, MemoryError) as error:
                raise InputError(f"{known}: cannot be read as an array ({error!s:.200})") from None
        return module.to(dtype)
