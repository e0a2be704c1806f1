"""The files of a training: the state that it resumes from, and the record and card of its model."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctx_embed.errors import InputError
from ctx_embed.files import fsync_folder, replaced_file, require_replaceable
from ctx_embed.model_card import facts, listed, name_of, page, table, usage
from ctx_embed.progress import say

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ctx_embed.classify.predictor import Predictor

# The record in a model folder: how the model was made, and whether the same command has already made it.
RECORD = "training.json"
MODEL = "modules.json"
# Maximum number of labels that the card lists; if there are more, it states only their number.
MOST_LABELS = 20
MORE = "`training.json` has the files of the data and their hashes, all options, and the course of the training."


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
        fsync_folder(self.folder.parent)
        # Open the file here: torch would not say why it cannot write to it.
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


def contents_hash(path: str | Path | None) -> str | None:
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


def classifier_card(name: str, predictor: Predictor, record: Mapping[str, Any], start: Path | None) -> str:
    """Return the card of a classifier in the folder ``name``, from the record of its run.

    ``start`` is the folder of the model that the run started from; None: from scratch.
    """
    origin = "scratch" if start is None else name_of(start)
    result, data, labels = record["result"], record["data"], predictor.head.labels
    module = dict(record["options"]["modules"][0])
    described = [
        ("dimension", str(predictor.encoder.raw_dimension)),
        ("encoder", f"{module.pop('module')}: {listed(module)}"),
        ("fingerprint", f"`{predictor.encoder.fingerprint}`"),
        ("labels", ", ".join(map(repr, labels)) if len(labels) <= MOST_LABELS else f"{len(labels)}"),
        ("training texts", f"{data['train']['rows']:,}"),
    ]
    if result["words"]:
        described.append(("words", f"{result['words']:,} words and pairs of words"))
    if start is not None:
        described.append(("made from", f"{origin}, fingerprint `{record['start']}`"))
    texts = {"valid": "held out of train", **{part: f"{known['rows']:,}" for part, known in data.items()}}
    scores = [
        [part, texts[part], f"{100 * result[f'{part}_accuracy']:.1f}", f"{100 * result[f'{part}_floor']:.1f}"]
        for part in ("valid", "test")
        if f"{part}_accuracy" in result
    ]
    return page(
        name,
        f"A text classifier: an encoder with a linear head, trained on labelled texts from {origin}.",
        described,
        {
            "Use": f"```sh\nctx-embed predict {name} FILE\n```\n\n```python\nimport ctx_embed\n\n"
            f'classifier = ctx_embed.TextClassifier.load("{name}")\nlabels = classifier.predict(["a text"])\n```\n\n'
            f"Its encoder alone gives sentence embeddings:\n\n{usage(name)}",
            "Scores": "Accuracy in %; the validation texts chose the epoch.\n\n"
            + table(["texts", "number", "accuracy", "most frequent label"], scores),
            "Training": MORE,
        },
        start,
        pipeline_tag="text-classification",
        tags=["text-classification"],
    )


def distilled_card(name: str, model: SentenceTransformer, record: Mapping[str, Any], teacher: Path) -> str:
    """Return the card of the distilled ``model`` in the folder ``name``, from its record and its teacher's folder."""
    origin = record["teacher"]["name"]
    about = facts(model)
    for label, key in (("teacher", "teacher"), ("second teacher", "second_teacher"), ("made from", "from")):
        if key in record:
            about.append((label, f"{record[key]['name']}, fingerprint `{record[key]['fingerprint']}`"))
    first, last = record["history"][0], record["history"][-1]
    measured = [key for key in last if key not in ("epoch", "step")]
    figures = [[key.replace("_", " "), f"{first[key]:.4f}", f"{last[key]:.4f}"] for key in measured]
    return page(
        name,
        f"Sentence embeddings, distilled from {origin}: an encoder that learned its teacher's embeddings.",
        about,
        {
            "Use": usage(name),
            "Scores": f"On {record['held_out_texts']:,} texts that were held out; held out distance is the mean of "
            "1 - cos to the teacher.\n\n"
            + table(["", "before training", "after"], figures)
            + f"\n\n`ctx-embed eval run --encoder {name} --task STSB` measures how good its embeddings are.",
            "Training": f"{record['trained_texts']:,} texts were trained on. {MORE}",
        },
        teacher,
        pipeline_tag="sentence-similarity",
        tags=["sentence-similarity"],
    )
