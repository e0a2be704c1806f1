"""A saved Contextualizer as NumPy reads it: settings, tokenizer, parameters, and a token table that stays on disk."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ctx_embed.errors import InputError
from ctx_embed.numpy_model.checks import is_size, modules_of, read_object, read_tokenizer, require_file, settings_of

DEFAULT_MODEL = Path(__file__).parent.parent / "pretrained" / "default"
# The default model's name in other programs and in model cards.
DEFAULT_NAME = "ctx-embed/default"

CONTEXTUALIZER = "ctx_embed.modules.contextualizer.Contextualizer"
# The paths of sentence-transformers' classes differ between its versions.
NORMALIZE, NORMALIZE_HOME = ".Normalize", "sentence_transformers."
CONFIG_KEYS = ["dimension", "steps", "rank", "positions", "scale", "initial_context", "max_seq_length"]
CHOICES = {
    "positions": ("absolute", "none", "relative"),
    "scale": ("mean", "sum"),
    "initial_context": ("learned", "ones", "uniform"),
}
SIMILARITIES = (None, "cosine", "dot")
UNIT = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "I32": "<i4", "I64": "<i8"}
TABLE, SCALES, PHRASES, STEPS = "embedding.weight", "embedding.scales", "phrases", "attention."
LARGEST_WEIGHTS = 1 << 40
FLOATS = {"F64", "F32", "F16", "BF16"}
LARGEST_HEADER = 1 << 20
# Number of values that are checked at a time.
CHECKED_NUMBERS = 1 << 22

Array = NDArray[Any]
Floats = NDArray[np.float32]


class UnsupportedModelError(InputError):
    """NumPy cannot run the model; torch may be able to."""


def _floats(values: Array, dtype: str) -> Floats:
    """Return stored numbers as float32; bfloat16, which NumPy lacks, is the upper half of a float32."""
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


class Tensors:
    """The tensors of a safetensors file, mapped into memory, so that only the values in use are read.

    The safetensors library would copy each tensor into memory: 25 MB, of which a query needs a few rows.

    Source: the format of safetensors: a length of 8 bytes, a JSON header, and the tensors' bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        require_file(path, LARGEST_WEIGHTS)
        try:
            self._bytes = np.memmap(path, np.uint8, "r")
            if len(self._bytes) < 8:
                raise ValueError("it is cut short")
            size = int(self._bytes[:8].view("<u8")[0])
            if size > min(LARGEST_HEADER, len(self._bytes) - 8):
                raise ValueError("its header is longer than the file")
            header = json.loads(self._bytes[8 : 8 + size].tobytes())
            header.pop("__metadata__", None)
            self._start = 8 + size
            self._entries: dict[str, Any] = header
            for name in header:
                self.stored(name)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{path}: no readable safetensors file ({error!s:.200})") from None
        if PHRASES in self and self.dtype(PHRASES) != "I32":
            raise InputError(f"{path}: {PHRASES} must hold I32 numbers, got {self.dtype(PHRASES)}")

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(self._entries)

    def dtype(self, name: str) -> str:
        """Return the dtype of a tensor as safetensors names it, such as ``F32``."""
        return str(self._entries[name]["dtype"])

    def stored(self, name: str) -> Array:
        """Return a tensor as it is stored, without reading it; bfloat16 as uint16."""
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        dtype = np.dtype(DTYPES[entry["dtype"]])
        if not all(type(number) is int and number >= 0 for number in (begin, end, *entry["shape"])):
            raise ValueError(f"the tensor {name} has no shape or place")
        if not 0 <= begin <= end or end - begin != math.prod(entry["shape"]) * dtype.itemsize:
            raise ValueError(f"the tensor {name} has {end - begin} bytes")
        if self._start + end > len(self._bytes):
            raise ValueError(f"the tensor {name} ends behind the file")
        values: Array = self._bytes[self._start + begin : self._start + end].view(dtype).reshape(entry["shape"])
        return values

    def require_finite(self) -> None:
        """Refuse numbers that are NaN or infinite, which would make embeddings undefined."""
        for name in self.names():
            if self.dtype(name) not in FLOATS:
                continue
            stored = self.stored(name).reshape(-1)
            count = 0
            for start in range(0, len(stored), CHECKED_NUMBERS):
                block = np.asarray(stored[start : start + CHECKED_NUMBERS])
                block = _floats(block, "BF16") if self.dtype(name) == "BF16" else block
                # Minimum and maximum are NaN if any value is; checking each value would take many times as long.
                if not (np.isfinite(block.min()) and np.isfinite(block.max())):
                    count += int((~np.isfinite(block)).sum())
            if count:
                raise InputError(
                    f"{self.path}: {count:,} of {len(stored):,} numbers of {name} are NaN or infinite; the model "
                    "diverged or its file is damaged; train it again, or copy the file again"
                )

    def floats(self, name: str) -> Floats:
        """Return a tensor in float32, in memory."""
        return _floats(np.asarray(self.stored(name)), self.dtype(name))


class TokenTable:
    """The token embeddings: row i is ``values[i]``, times ``scales[i]`` if there are scales.

    Attributes:
        values: (entries, m) int8 or float32, where they lie on disk if they are stored so.
        scales: (entries,) of int8 rows; None for float32.
        shape: (entries, m).
    """

    def __init__(self, values: Array, scales: Floats | None = None) -> None:
        self.values, self.scales = values, scales
        self.shape: tuple[int, ...] = values.shape

    @classmethod
    def read(cls, tensors: Tensors) -> TokenTable:
        """Return the table of tensors with ``embedding.weight``, and ``embedding.scales`` if its rows are int8."""
        kept = tensors.dtype(TABLE) in ("I8", "F32")
        values = np.asarray(tensors.stored(TABLE)) if kept else tensors.floats(TABLE)
        return cls(values, tensors.floats(SCALES)[:, 0].copy() if SCALES in tensors else None)

    def rows(self, ids: Any) -> Floats:
        """Return the rows of some ids in float32, (*ids.shape, m); ``ids`` may be a slice."""
        rows: Floats = self.values[ids].astype(np.float32)
        if self.scales is not None:
            rows *= self.scales[ids, None]
        return rows


@dataclass(frozen=True)
class SavedContextualizer:
    """The contents of a model folder.

    Attributes:
        folder: the folder.
        files: the files in it that decide its embeddings.
        name: the Contextualizer's name among the modules, the prefix of its tensors' names.
        config: the Contextualizer's options.
        normalize: the configs of the modules after the Contextualizer, each a ``Normalize``.
        settings: the content of ``config_sentence_transformers.json``.
        tensors: the Contextualizer's parameters, by name without the prefix.
        tokenizer: the tokenizer, with padding and truncation off.
    """

    folder: Path
    files: list[Path]
    name: str
    config: dict[str, Any]
    normalize: list[dict[str, Any]]
    settings: dict[str, Any]
    tensors: Tensors
    tokenizer: Tokenizer

    @classmethod
    def read(cls, folder: Path) -> SavedContextualizer:
        """Read a folder that sentence-transformers wrote."""
        first, *others = modules_of(folder)
        kinds = [other.kind for other in others]
        foreign = [kind for kind in kinds if not (kind.startswith(NORMALIZE_HOME) and kind.endswith(NORMALIZE))]
        if first.kind != CONTEXTUALIZER:
            foreign.insert(0, first.kind)
        if foreign:
            name = foreign[0].rpartition(".")[2]
            raise UnsupportedModelError(f"{folder}: {name} runs on torch (NumPy runs the Contextualizer)")
        home = first.home
        config_path = home / "contextualizer_config.json"
        config = read_object(config_path)
        if sorted(config) != sorted(CONFIG_KEYS):
            raise UnsupportedModelError(
                f"{config_path}: has options that the NumPy model does not support; load it with torch"
            )
        require_options(config, config_path)
        normalize: list[dict[str, Any]] = []
        files = [folder / "modules.json", config_path, home / "tokenizer.json", home / "model.safetensors"]
        for other in others:
            file = other.home / "config.json"
            options = read_object(file) if file.exists() else {}
            if {**UNIT, **options} != UNIT:
                raise UnsupportedModelError(
                    f"{file}: has options that the NumPy model does not support; load it with torch"
                )
            files += [file] if file.exists() else []
            normalize.append(UNIT)
        settings = settings_of(folder)
        if settings.get("similarity_fn_name") not in SIMILARITIES:
            raise UnsupportedModelError(f"{folder}: NumPy has the similarities cosine and dot; load it with torch")
        tokenizer = read_tokenizer(home / "tokenizer.json")
        tensors = Tensors(home / "model.safetensors")
        tensors.require_finite()
        require_shapes(config, tensors, tokenizer)
        return cls(folder, files, first.name, config, normalize, settings, tensors, tokenizer)

    @property
    def parameters(self) -> dict[str, Floats]:
        """The parameters of the steps, by name."""
        names = [name for name in self.tensors.names() if name.startswith(STEPS)]
        return {name.removeprefix(STEPS): self.tensors.floats(name) for name in names}


def require_options(config: dict[str, Any], path: Path) -> None:
    """Refuse options of a Contextualizer that have the wrong type or value."""
    for option in ("dimension", "steps", "rank", "max_seq_length"):
        if not is_size(config[option]) and not (option == "max_seq_length" and config[option] is None):
            raise InputError(f"{path}: {option} must be a positive integer, got {config[option]!r:.80}")
    for option, known in CHOICES.items():
        if config[option] not in known:
            raise InputError(f"{path}: {option} must be one of {', '.join(known)}, got {config[option]!r:.80}")


def require_shapes(config: dict[str, Any], tensors: Tensors, tokenizer: Tokenizer) -> None:
    """Refuse tensors of a Contextualizer if their shapes or values do not fit its options."""
    m, K, u = (config[key] for key in ("dimension", "steps", "rank"))
    entries = tokenizer.get_vocab_size() + (len(tensors.stored(PHRASES)) if PHRASES in tensors else 0)
    wanted = {TABLE: (entries, m), **{f"{STEPS}{name}": (K, u, m) for name in "UV"}, f"{STEPS}W": (K, m, u)}
    wanted |= {f"{STEPS}{name}": (K, m) for name in ("b", "gain", "bias")}
    if config["positions"] != "none":
        wanted[f"{STEPS}s"] = (m,)
    if config["initial_context"] == "learned":
        wanted[f"{STEPS}c0"] = (m,)
    if SCALES in tensors:
        wanted[SCALES] = (entries, 1)
    for name, shape in wanted.items():
        if name not in tensors or tensors.stored(name).shape != shape:
            found = tensors.stored(name).shape if name in tensors else "nothing"
            raise InputError(f"{tensors.path}: {name} must have shape {shape}, got {found}")
        if (tensors.dtype(name) in FLOATS) != (name != TABLE or SCALES not in tensors):
            raise InputError(f"{tensors.path}: {name} must not hold {tensors.dtype(name)} numbers")
    if unknown := set(tensors.names()) - {*wanted, PHRASES}:
        raise InputError(f"{tensors.path}: no Contextualizer of these options has the tensor {min(unknown)!r:.80}")
