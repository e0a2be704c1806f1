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

DEFAULT_MODEL = Path(__file__).parent.parent / "pretrained" / "default"
# What other programs and cards call it.
DEFAULT_NAME = "ctx-embed/default"

CONTEXTUALIZER = "ctx_embed.modules.contextualizer.Contextualizer"
# The class that sentence-transformers' modules are named by differs between its versions.
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
LARGEST_HEADER = 100_000_000

Array = NDArray[Any]
Floats = NDArray[np.float32]


class UnsupportedModelError(InputError):
    """The model is none that NumPy runs; torch may."""


def _needs_torch(folder: Path, kind: str) -> UnsupportedModelError:
    name = str(kind).rpartition(".")[2]
    return UnsupportedModelError(f"{folder}: {name} runs on torch (NumPy runs the Contextualizer)")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        InputError: the file is missing or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error})") from None


def _floats(values: Array, dtype: str) -> Floats:
    """Return stored numbers as float32; bfloat16, which NumPy lacks, is the upper half of a float32."""
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


class Tensors:
    """The tensors of a safetensors file, mapped into memory: what nobody touches is never read.

    The library itself copies each tensor into memory, here 25 MB of which a query needs a few rows.

    Raises:
        InputError: the file is missing, cut short or of another format.

    Source: the format of safetensors: a length of 8 bytes, a JSON header, and the tensors' bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._bytes = np.memmap(path, np.uint8, "r")
            size = int(self._bytes[:8].view("<u8")[0])
            if size > min(LARGEST_HEADER, len(self._bytes) - 8):
                raise ValueError("its header is longer than the file")
            header = json.loads(self._bytes[8 : 8 + size].tobytes())
            header.pop("__metadata__", None)
            self._start = 8 + size
            self._entries: dict[str, Any] = header
            for name in header:
                self.stored(name)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: no readable safetensors file ({error})") from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(self._entries)

    def dtype(self, name: str) -> str:
        """Return the format's name of a tensor's numbers, such as ``F32``."""
        return str(self._entries[name]["dtype"])

    def stored(self, name: str) -> Array:
        """Return a tensor as it is stored, without reading it; bfloat16 as uint16."""
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        dtype = np.dtype(DTYPES[entry["dtype"]])
        if not 0 <= begin <= end or end - begin != math.prod(entry["shape"]) * dtype.itemsize:
            raise ValueError(f"the tensor {name} has {end - begin} bytes")
        if self._start + end > len(self._bytes):
            raise ValueError(f"the tensor {name} ends behind the file")
        values: Array = self._bytes[self._start + begin : self._start + end].view(dtype).reshape(entry["shape"])
        return values

    def floats(self, name: str) -> Floats:
        """Return a tensor in float32, in memory."""
        return _floats(np.asarray(self.stored(name)), self.dtype(name))


class TokenTable:
    """The token embeddings; rows are made float32 when they are used.

    Args:
        tensors: that hold ``embedding.weight``, with ``embedding.scales`` where its rows are int8.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._stored = tensors.stored(TABLE)
        self._dtype = tensors.dtype(TABLE)
        self._scales = tensors.floats(SCALES) if SCALES in tensors else None
        self.shape: tuple[int, ...] = self._stored.shape

    def rows(self, ids: Any) -> Floats:
        """Return the rows of some ids, (len(ids), m); ``ids`` may be a slice."""
        rows = _floats(np.asarray(self._stored[ids]), self._dtype)
        if self._scales is not None:
            rows *= self._scales[ids]
        return rows


def require_model_folder(folder: Path) -> None:
    """Refuse what is not a saved SentenceTransformer.

    Raises:
        InputError: no folder, or one without ``modules.json``.
    """
    if not folder.exists():
        raise InputError(f"{folder}: no such model folder")
    if not (folder / "modules.json").is_file():
        raise InputError(f"{folder}: not a SentenceTransformer model folder (no modules.json)")


@dataclass(frozen=True)
class SavedContextualizer:
    """What a model folder holds.

    Attributes:
        folder: that it was read from.
        files: of the folder that decide its embeddings.
        name: of the Contextualizer among the modules, before which its tensors are named.
        config: its options.
        normalize: the configs of the modules that follow it, each a ``Normalize``.
        settings: ``config_sentence_transformers.json``.
        tensors: its parameters, by names without the module's.
        tokenizer: padding and truncation off.
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
        """Read a folder that sentence-transformers wrote.

        Raises:
            UnsupportedModelError: a model of other modules, or with options that NumPy does not cover.
            InputError: no model folder, or a damaged one.
        """
        modules = read_json(folder / "modules.json")
        try:
            first, *others = [(entry["name"], folder / entry["path"], entry["type"]) for entry in modules]
            name, home, kind = first
        except (TypeError, LookupError, ValueError):
            raise InputError(f"{folder}: modules.json must be a list of modules") from None
        if kind != CONTEXTUALIZER:
            raise _needs_torch(folder, kind)
        config_path = home / "contextualizer_config.json"
        config = read_json(config_path)
        if not isinstance(config, dict) or sorted(config) != sorted(CONFIG_KEYS):
            raise UnsupportedModelError(f"{config_path}: other options than those that NumPy reads; load it with torch")
        for option, known in CHOICES.items():
            if config[option] not in known:
                raise InputError(f"{config_path}: {option} must be one of {', '.join(known)}, got {config[option]!r}")
        normalize, files = (
            [],
            [folder / "modules.json", config_path, home / "tokenizer.json", home / "model.safetensors"],
        )
        for _, path, kind in others:
            if not (kind.startswith(NORMALIZE_HOME) and kind.endswith(NORMALIZE)):
                raise UnsupportedModelError(
                    f"{folder}: {kind.rpartition('.')[2]} runs on torch, NumPy runs a Contextualizer"
                )
            file = path / "config.json"
            options = read_json(file) if file.is_file() else {}
            if {**UNIT, **options} != UNIT:
                raise UnsupportedModelError(f"{file}: other options than those that NumPy reads; load it with torch")
            files += [file] if file.is_file() else []
            normalize.append(UNIT)
        settings_path = folder / "config_sentence_transformers.json"
        settings = read_json(settings_path) if settings_path.is_file() else {}
        if not isinstance(settings, dict):
            raise InputError(f"{settings_path}: must hold a JSON object, got a {type(settings).__name__}")
        if settings.get("similarity_fn_name") not in SIMILARITIES:
            raise UnsupportedModelError(f"{settings_path}: another similarity than cosine and dot; load it with torch")
        tokenizer_path = home / "tokenizer.json"
        if not tokenizer_path.is_file():
            raise InputError(f"{folder}: no tokenizer.json, no saved model of ctx_embed")
        try:
            tokenizer = Tokenizer.from_file(str(tokenizer_path))
        # tokenizers raises a bare Exception.
        except Exception as error:
            raise InputError(f"{tokenizer_path}: no tokenizer ({error})") from None
        tokenizer.no_padding()
        tokenizer.no_truncation()
        saved = cls(folder, files, name, config, normalize, settings, Tensors(home / "model.safetensors"), tokenizer)
        saved._require_shapes()
        return saved

    @property
    def parameters(self) -> dict[str, Floats]:
        """The parameters of the steps, by name."""
        names = [name for name in self.tensors.names() if name.startswith(STEPS)]
        return {name.removeprefix(STEPS): self.tensors.floats(name) for name in names}

    def _require_shapes(self) -> None:
        m, K, u = (self.config[key] for key in ("dimension", "steps", "rank"))
        tensors = self.tensors
        entries = self.tokenizer.get_vocab_size() + (len(tensors.stored(PHRASES)) if PHRASES in tensors else 0)
        wanted = {TABLE: (entries, m), **{f"attention.{name}": (K, u, m) for name in "UV"}, "attention.W": (K, m, u)}
        wanted |= {f"attention.{name}": (K, m) for name in ("b", "gain", "bias")}
        if self.config["positions"] != "none":
            wanted["attention.s"] = (m,)
        if self.config["initial_context"] == "learned":
            wanted["attention.c0"] = (m,)
        for name, shape in wanted.items():
            if name not in tensors or tensors.stored(name).shape != shape:
                found = tensors.stored(name).shape if name in tensors else "nothing"
                raise InputError(f"{tensors.path}: {name} must have shape {shape}, got {found}")
