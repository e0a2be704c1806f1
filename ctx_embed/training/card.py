"""Model cards of models made by ``train`` and ``distill``, written from the records of their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctx_embed.model_card import facts, inherited, licence, listed, name_of, page, table, usage

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Maximum number of labels that the card lists; of more, it states only the number.
MOST_LABELS = 20


def classifier_card(
    name: str, about: Sequence[tuple[str, str]], labels: Sequence[Any], record: Mapping[str, Any], start: Path | None
) -> str:
    """Return the card of a classifier in the folder ``name``.

    Args:
        about: what the encoder is, see :func:`ctx_embed.model_card.facts`.
        labels: the classes.
        record: the record of the run.
        start: the folder of the model that the run started from; None: from scratch.
    """
    stated = inherited(start)
    origin = None if start is None else name_of(start)
    result, data = record["result"], record["data"]
    named = ", ".join(map(repr, labels)) if len(labels) <= MOST_LABELS else f"{len(labels)}, see classifier.json"
    texts = {"valid": "held out of train", **{part: f"{known['rows']:,}" for part, known in data.items()}}
    scores = [
        [part, texts[part], f"{100 * result[f'{part}_accuracy']:.1f}", f"{100 * result[f'{part}_floor']:.1f}"]
        for part in ("valid", "test")
        if f"{part}_accuracy" in result
    ]
    options = {option: value for option, value in record["options"].items() if option not in ("from", "modules")}
    beginning = f"from {origin}" if origin else "from scratch"
    described = [*about, ("labels", named)]
    if result["words"]:
        described.append(("words", f"{result['words']:,} words and pairs of words"))
    if origin:
        described.append(("made from", f"{origin}, fingerprint `{record['start']}`"))
    return page(
        {**stated, "pipeline_tag": "text-classification", "tags": ["text-classification"]},
        name,
        {
            "": f"A text classifier: an encoder with a linear head, trained on labelled texts {beginning}.\n\n"
            + table(["", ""], described),
            "Use": f"```sh\nctx-embed predict {name} FILE\n```\n\n```python\nimport ctx_embed\n\n"
            f'classifier = ctx_embed.TextClassifier.load("{name}")\nlabels = classifier.predict(["a text"])\n```\n\n'
            f"Its encoder alone gives sentence embeddings:\n\n{usage(name)}",
            "Scores": "Accuracy in %; the validation texts chose the epoch.\n\n"
            + table(["texts", "number", "accuracy", "most frequent label"], scores),
            "Training": table(
                ["data", "file", "rows", "sha256"],
                [[part, known["file"], f"{known['rows']:,}", known["sha256"] or ""] for part, known in data.items()],
            )
            + f"\n\nOptions: {listed(options)}.\n\n`training.json` has the course of the training.",
            "Licence": licence(origin, stated),
        },
    )


def distilled_card(name: str, model: SentenceTransformer, record: Mapping[str, Any], teacher: Path) -> str:
    """Return the card of the distilled ``model`` in the folder ``name``, from its record and its teacher's folder."""
    stated, origin, dtype = inherited(teacher), record["teacher"]["name"], record["teacher"]["dtype"]
    about = [*facts(model), ("teacher", f"{origin} in {dtype}, fingerprint `{record['teacher']['fingerprint']}`")]
    for label, key in (("second teacher", "second_teacher"), ("made from", "from")):
        if key in record:
            about.append((label, f"{record[key]['name']}, fingerprint `{record[key]['fingerprint']}`"))
    first, last = record["history"][0], record["history"][-1]
    measured = [key for key in last if key not in ("epoch", "step")]
    figures = [[key.replace("_", " "), f"{first[key]:.4f}", f"{last[key]:.4f}"] for key in measured]
    kinds = [("corpus", source["files"]) for source in record["sources"]]
    kinds += [("labelled", record["labelled"]), ("excluded", record["exclude"])]
    # Several sources may read one file.
    files = dict.fromkeys((kind, file, sha256) for kind, hashes in kinds for file, sha256 in hashes.items())
    return page(
        {**stated, "pipeline_tag": "sentence-similarity", "tags": ["sentence-similarity"]},
        name,
        {
            "": f"Sentence embeddings, distilled from {origin}: an encoder that learned its teacher's embeddings.\n\n"
            + table(["", ""], about),
            "Use": usage(name),
            "Scores": f"On {record['held_out_texts']:,} texts that were held out; held out distance is the mean of "
            "1 - cos to the teacher.\n\n"
            + table(["", "before training", "after"], figures)
            + f"\n\n`ctx-embed eval run --encoder {name} --task STSB` measures how good its embeddings are.",
            "Training": f"{record['trained_texts']:,} texts were trained on.\n\n"
            + table(["data", "file", "sha256"], files)
            + f"\n\nOptions: {listed(record['options'])}, {listed(record['architecture'])}, "
            f"phrases {record['phrases']}, stored as {record['store']}.\n\n"
            "`training.json` has every option and the course of the training.",
            "Licence": licence(origin, stated),
        },
    )
