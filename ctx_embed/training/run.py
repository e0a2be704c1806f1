"""The files of a training: the state that it resumes from, and the record and card of its model."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError
from ctx_embed.files import replaced_file, require_replaceable
from ctx_embed.loading import model_folder
from ctx_embed.model_card import facts, name_of, page, usage
from ctx_embed.progress import say

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ctx_embed.classify.predictor import Predictor

# The record in a model folder: how the model was made, and whether the same command has already made it.
RECORD = "training.json"
MODEL = "modules.json"
# Maximum number of labels that the card lists; of more, it states only the number.
MOST_LABELS = 20
MORE = "`training.json` has the data's files and hashes, all options, the course of the training and the scores."


class Checkpoint:
    """One file in the folder ``OUT.partial`` next to a run's output, created with the first state.

    ``run`` is the run's :func:`ctx_embed.fingerprint.identity`; the state of another run is ignored and replaced.
    """

    def __init__(self, output: Path, run: str) -> None:
        self.folder = output.with_name(output.name + ".partial")
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} must be a folder for the state of the run, got a file; remove it first")
        self.run = run
        self.path = self.folder / "checkpoint.pt"

    def load(self) -> dict[str, Any] | None:
        """Return the state last saved by the same run, or None if no such state can be read."""
        import torch

        try:
            state: dict[str, Any] = torch.load(self.path, weights_only=True)
            return state if state.pop("run") == self.run else None
        except Exception:
            # The file is missing or damaged (torch.load raises many kinds of errors): start from the beginning.
            return None

    def save(self, state: dict[str, Any]) -> None:
        """Store a state made of tensors, numbers, strings and containers of these."""
        import torch

        self.folder.mkdir(exist_ok=True)
        # torch does not say why it cannot write to a path.
        with replaced_file(self.path) as beside, beside.open("wb") as file:
            torch.save({**state, "run": self.run}, file)

    def remove(self) -> None:
        """Remove the state, and the folder if nothing else is in it."""
        for path in (self.path, *self.folder.glob(f".{self.path.name}.*")):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()


def require_finite(value: float, step: int) -> None:
    """Raise an error if a loss or a metric is infinite or NaN: the training has failed and must not be saved."""
    if not math.isfinite(value):
        raise InputError(f"the training diverged at step {step} ({value}); lower --learning-rate")


def content_hash(path: str | Path | None) -> str | None:
    """Return the sha256 of a file, or of all files in a folder with their names; None if there is neither."""
    path = Path(path) if path is not None else None
    if path is None or not path.exists():
        return None
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    files = sorted(file for file in path.rglob("*") if file.is_file())
    parts = [f"{file.relative_to(path)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def file_hashes(files: Sequence[str | Path]) -> dict[str, str]:
    """Return the sha256 of each file by its name; files of the same name are listed with their folder's name."""
    paths = [Path(file) for file in files]
    alike = Counter(path.name for path in paths)
    names = [path.name if alike[path.name] == 1 else f"{path.absolute().parent.name}/{path.name}" for path in paths]
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in zip(names, paths, strict=True)}


def finished(output: Path, asked: str, *, overwrite: bool) -> dict[str, Any] | None:
    """Return the record if the same command has already finished, and say so on stderr; None if there is work to do.

    A record holds a hash of everything that its command ``asked`` for. Raise an InputError if the folder holds
    something else, or another model that is not to be replaced.
    """
    require_replaceable(output, MODEL)
    if overwrite or not (output / MODEL).is_file():
        return None
    try:
        record: Any = json.loads((output / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict) or record.get("asked") != asked:
        raise InputError(
            f"{output}: a model exists already and this command would make another; replace it with --overwrite, or "
            "choose another name"
        )
    say(f"nothing to do: this command has made {output} already")
    return record


def classifier_card(name: str, predictor: Predictor, start: Path | None) -> str:
    """Return the card of a classifier in the folder ``name``, made from the model in ``start``; None: from scratch."""
    labels = predictor.head.labels
    described = [
        ("dimension", str(predictor.encoder.dimension)),
        ("fingerprint", f"`{predictor.encoder.fingerprint}`"),
        ("labels", ", ".join(map(repr, labels)) if len(labels) <= MOST_LABELS else f"{len(labels)}"),
    ]
    origin = "scratch" if start is None else name_of(start)
    use = (
        f"```sh\nctx-embed predict {name} FILE\n```\n\n```python\nimport ctx_embed\n\n"
        f'classifier = ctx_embed.TextClassifier.load("{name}")\nlabels = classifier.predict(["a text"])\n```\n\n'
        f"Its encoder alone gives sentence embeddings:\n\n{usage(name)}"
    )
    what = f"A text classifier: an encoder with a linear head, trained on labelled texts from {origin}. {MORE}"
    return page(name, what, described, use, start, pipeline_tag="text-classification", tags=["text-classification"])


def distilled_card(name: str, model: SentenceTransformer, teacher: str) -> str:
    """Return the card of the distilled ``model`` in the folder ``name``."""
    what = f"Sentence embeddings, distilled from {teacher}: an encoder that learned its teacher's embeddings. {MORE}"
    kind = "sentence-similarity"
    return page(name, what, facts(model), usage(name), model_folder(teacher), pipeline_tag=kind, tags=[kind])
