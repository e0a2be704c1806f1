"""Loading a model, on torch or in NumPy: the trained default inside the package, a folder, or a name on the hub."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ctx_embed.errors import InputError, left_out, nearest_name, quoted
from ctx_embed.numpy_model.embedder import require_dimensions
from ctx_embed.numpy_model.saved import (
    DEFAULT_MODEL,
    DEFAULT_NAME,
    PACKAGED,
    Entry,
    modules_of,
    named_folder,
    read_json,
    require_contents,
    settings_of,
)
from ctx_embed.options import DEFAULT

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

OTHER_FRAMEWORKS = ["*.h5", "*.msgpack", "*.onnx", "*.ot", "onnx/*", "openvino/*"]
# Only these packages may define the classes that a model folder names, so that a folder never runs foreign code.
TRUSTED_PACKAGES = ("ctx_embed.modules.", "ctx_embed.systems.", "sentence_transformers.")
# The only classes of sentence-transformers that are loaded: their folders hold weights and settings. Others import what
# their folder names, such as Router and WordEmbeddings.
KNOWN_CLASSES = (
    *("Transformer", "StaticEmbedding", "BoW", "Pooling", "WeightedLayerPooling", "WordWeights"),
    *("CNN", "LSTM", "Dense", "LayerNorm", "Dropout", "Normalize", "LogitScore"),
)
# The output of this package's encoders, which the modules after them change.
FEATURE = "sentence_embedding"
# The versions of sentence-transformers define Normalize in different files, and all export it here.
NORMALIZE = "sentence_transformers.sentence_transformer.modules.Normalize"


def path() -> Path:
    """Return the folder of the model that ships with the package, for programs that take a model by its path.

    ``SentenceTransformer(str(ctx_embed.path()), trust_remote_code=True)`` is ``ctx_embed.load()``.
    """
    return DEFAULT_MODEL


def _require_activation(name: Any, file: Path) -> None:
    """Refuse an activation that is not a layer of torch: sentence-transformers would call it."""
    from torch import nn

    home, _, kind = str(name).rpartition(".")
    if home not in ("torch.nn", "torch.nn.modules.activation", "torch.nn.modules.linear") or not (
        isinstance(layer := getattr(nn, kind, None), type) and issubclass(layer, nn.Module)
    ):
        raise InputError(f"{file}: the activation must be a layer of torch.nn, got {quoted(name)}")


def _module_class(entry: Entry, folder: Path) -> Any:
    """Return the class of a module, which must come from a trusted package and run no code from its folder."""
    reference = entry.kind
    if not reference.startswith(TRUSTED_PACKAGES):
        trusted = ", ".join(f"{package}*" for package in TRUSTED_PACKAGES)
        raise InputError(f"{folder}: modules.json must name classes of {trusted}, got {quoted(reference)}")
    from sentence_transformers.base.modules.module import Module

    home, _, name = (NORMALIZE if entry.normalizes else reference).rpartition(".")
    try:
        module_class = getattr(import_module(home), name)
    except (ImportError, AttributeError):
        module_class = None
    if not (isinstance(module_class, type) and issubclass(module_class, Module)):
        raise InputError(f"{folder}: modules.json names {quoted(reference)}, which does not exist")
    if module_class.__module__.startswith("sentence_transformers.") and module_class.__name__ not in KNOWN_CLASSES:
        raise InputError(f"{folder}: a {module_class.__name__} may run code from its folder, and is not loaded")
    config = entry.home / "config.json"
    if module_class.__name__ == "Dense" and config.is_file():
        fields = read_json(config)
        if "activation_function" in fields:
            _require_activation(fields["activation_function"], config)
    return module_class


def require_device(device: str | torch.device | None) -> None:
    """Refuse a device that torch cannot use on this machine."""
    import torch

    try:
        torch.empty(0, device=device)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        reason, *_ = str(error).split("\n")
        raise InputError(f"device {quoted(device)} cannot be used here ({reason})") from None


def local_folder(given: str | Path | None, **hub: Any) -> Path:
    """Return the folder of the default model (None or ``default``), of a path, or of a name on the hub, downloaded."""
    path = DEFAULT if given is None else str(given)
    if (folder := named_folder(path)) is not None:
        return folder
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise InputError(f"{path}: no such model folder")
    from huggingface_hub import constants, snapshot_download

    near = nearest_name(path, (DEFAULT, *PACKAGED))
    name = path if "/" in path else f"sentence-transformers/{path}"
    try:
        return Path(snapshot_download(name, ignore_patterns=OTHER_FRAMEWORKS, **hub))
    except Exception as error:
        hint = ""
        if path.rpartition("/")[2].lower() == "all-minilm-l6-v2":
            hint = "; 'minilm' is the same model from the extra peers, without the hub"
        elif near:
            hint = f"; {near}"
        elif constants.HF_HUB_OFFLINE:
            hint = "; HF_HUB_OFFLINE is set, so nothing is downloaded"
        elif hub.get("local_files_only"):
            hint = "; a model that you do not name yourself is not downloaded"
        raise InputError(
            f"{path}: no such folder, and no model of that name could be downloaded from the hub "
            f"({type(error).__name__}){hint}"
        ) from None


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers while it loads weights: progress bars, and reports on position ids that no model needs."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def model_folder(path: str | Path | None, **hub: Any) -> Path:
    """Return the folder of the default model (None or ``default``), of a path or of a name on the hub."""
    folder = local_folder(path, **hub)
    require_contents(folder, *(entry.home for entry in modules_of(folder)))
    return folder


def load_cross_encoder(name: str) -> Any:
    """Return the CrossEncoder of a folder, or of a name on the hub, without running code from its folder."""
    from sentence_transformers import CrossEncoder

    folder = local_folder(name)
    for file in ("config.json", "config_sentence_transformers.json"):
        if not (folder / file).is_file():
            continue
        fields = read_json(folder / file)
        inner = fields.get("sentence_transformers")
        for part, key in (
            (fields, "activation_fn"),
            (fields, "sbert_ce_default_activation_function"),
            (inner if isinstance(inner, dict) else {}, "activation_fn"),
        ):
            if part.get(key) is not None:
                _require_activation(part[key], folder / file)
    if (folder / "modules.json").is_file():
        entries = modules_of(folder)
        require_contents(folder, *(entry.home for entry in entries))
        for entry in entries:
            _module_class(entry, folder)
    try:
        return CrossEncoder(str(folder), local_files_only=True)
    except Exception as error:
        reason, *_ = str(error).split("\n")
        raise InputError(f"{name}: the CrossEncoder cannot be loaded ({type(error).__name__}: {reason})") from error


def load(
    path: str | Path | None = None,
    device: str | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    prompts: dict[str, str] | None = None,
    default_prompt_name: str | None = None,
    similarity_fn_name: str | None = None,
    truncate_dim: int | None = None,
    cache_folder: str | None = None,
    revision: str | None = None,
    token: bool | str | None = None,
    local_files_only: bool = False,
    model_kwargs: dict[str, Any] | None = None,
) -> SentenceTransformer:
    """Load a SentenceTransformer without running code from its folder.

    To fine-tune a model of this package with sentence-transformers' trainer, set ``learning_rate=1e-3``; with the
    default of 5e-5 the parameters hardly change.

    Args:
        path: a model folder or a name on the hub; None or ``default`` loads the default model of this package,
            ``minilm`` the all-MiniLM-L6-v2 of the extra ``peers``, ``permissive`` the model of the extra of this name.
        device: as in sentence-transformers; None chooses one.
        dtype: the type of the parameters, e.g. ``float32`` or ``bfloat16``; None: the model's own (float32 for a
            Contextualizer).
        prompts, default_prompt_name, similarity_fn_name, truncate_dim: replace the saved ones.
        cache_folder, revision, token, local_files_only: for downloads from the hub.
        model_kwargs: passed to every module's ``load``.

    Returns:
        The model; its ``encode`` returns float32 arrays (texts, m).

    Raises:
        InputError: no such model, a damaged one, or one whose modules come from another package.
    """
    try:
        from ctx_embed.modules.sentence_transformer import SentenceTransformer
    except ModuleNotFoundError as error:
        raise InputError(left_out(f"{path or 'the default model'} on torch", error) or str(error)) from None

    from ctx_embed.modules.token_encoder import TokenEncoder
    from ctx_embed.saved_card import Card, IdentifiedCard

    require_device(device)
    folder = local_folder(
        path, cache_dir=cache_folder, revision=revision, token=token, local_files_only=local_files_only
    )
    entries, config = modules_of(folder), settings_of(folder)
    # Transformers would read a pointer of git-lfs as a vocabulary.
    require_contents(folder, *(entry.home for entry in entries))
    kwargs = {**(model_kwargs or {}), **({} if dtype is None else {"dtype": dtype})}
    modules: OrderedDict[str, Any] = OrderedDict()
    try:
        for entry in entries:
            module_class = _module_class(entry, folder)
            with _quiet_transformers():
                modules[entry.name] = module_class.load(
                    str(folder),
                    subfolder=entry.home.relative_to(folder).as_posix() if entry.home != folder else "",
                    local_files_only=True,
                    model_kwargs=dict(kwargs),
                )
        first = modules[entries[0].name]
        if not (hasattr(first, "preprocess") or hasattr(first, "tokenize")):
            raise InputError(
                f"{folder}: modules.json must begin with a module that reads texts, got {type(first).__name__}"
            )
        is_ours = isinstance(first, TokenEncoder)
        for name, module in list(modules.items())[1 if is_ours else len(modules) :]:
            features = [getattr(module, f"module_{end}_name", FEATURE) for end in ("input", "output")]
            if features != [FEATURE, FEATURE]:
                raise InputError(
                    f"{folder}: the module {quoted(name)} must read and write {FEATURE}, got {quoted(features[0])} and "
                    f"{quoted(features[1])}"
                )
        card_class = Card if is_ours else IdentifiedCard
        # Other programs, such as MTEB, name the model as the hub or its folder does.
        own = Path(os.path.abspath(folder)).name if os.path.exists(str(path)) else str(path)
        model = SentenceTransformer(
            modules=cast(Any, modules),
            device=device,
            prompts={**(config.get("prompts") or {}), **(prompts or {})},
            default_prompt_name=default_prompt_name or config.get("default_prompt_name"),
            similarity_fn_name=cast(Any, similarity_fn_name or config.get("similarity_fn_name")),
            truncate_dim=truncate_dim if truncate_dim is not None else config.get("truncate_dim"),
            model_card_data=card_class(model_name=DEFAULT_NAME if folder == DEFAULT_MODEL else own),
        )
        require_dimensions(model.truncate_dim, model.dimension)
    except InputError:
        raise
    except Exception as error:
        reason, *_ = str(error).split("\n")
        raise InputError(f"{folder}: the model cannot be loaded ({type(error).__name__}: {reason})") from error
    model.module_kwargs = {entry.name: entry.arguments for entry in entries}
    card = folder / "README.md"
    if card.is_file() and not is_ours:
        cast(Any, model)._model_card_text = card.read_text(encoding="utf-8", errors="replace")
    return model
