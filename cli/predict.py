"""`ctx-embed predict`: labels and probabilities from a trained classifier."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from ctx_embed.cli.main import command, counted, printable
from ctx_embed.cli.options import encoding_option, field_options, output_option
from ctx_embed.errors import InputError
from ctx_embed.texts import Document, well_formed

if TYPE_CHECKING:
    from ctx_embed.classify.predictor import Predictor

# Number of texts that are read and predicted at a time.
AT_ONCE = 8192

Row = dict[str, Any]


def _cells(row: Row, digits: str = ".4f") -> tuple[str, ...]:
    """Return labels and probabilities, separated by commas, and with --explain the reasons for the labels."""
    if row["probabilities"] is None:
        return ("", "", *[""] * ("explanations" in row))
    labels = row["labels"] if "labels" in row else [row["label"]]
    shown = ",".join(f"{round(row['probabilities'][str(label)], 4):{digits}}" for label in labels)
    if "explanations" not in row:
        return ",".join(map(str, labels)), shown
    reasons = []
    for explanation in row["explanations"]:
        of_meaning, words = (
            ", ".join(f"{name} {part:+.2f}" for name, part in explanation[parts].items()) or "none"
            for parts in ("of_meaning", "words")
        )
        label, logit, meaning, bias = (explanation[name] for name in ("label", "logit", "meaning", "bias"))
        # Adding 0 turns -0 into 0.
        of_words = round(logit - meaning - bias, 2) + 0.0
        reasons.append(
            f"{label} {logit:+.2f} = meaning {meaning:+.2f} ({of_meaning}), words {of_words:+.2f} ({words}), "
            f"bias {bias:+.2f}"
        )
    return ",".join(map(str, labels)), shown, "; ".join(reasons)


def _write_lines(file: TextIO, rows: Iterator[Row]) -> None:
    """Write label, probability and text separated by tabs, for people; with --explain, the reasons follow the text."""
    for row in rows:
        label, probability, *why = _cells(row)
        # A tab or newline inside a label or text would tear the line.
        cells = (printable(cell, " ") for cell in (label, probability, row["text"], *why))
        file.write("\t".join(cells) + "\n")


def _write_jsonl(file: TextIO, rows: Iterator[Row]) -> None:
    file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def _write_json(file: TextIO, rows: Iterator[Row]) -> None:
    file.write("[")
    for number, row in enumerate(rows):
        file.write((",\n" if number else "\n") + json.dumps(row, ensure_ascii=False))
    file.write("\n]\n")


def _write_table(file: TextIO, rows: Iterator[Row], delimiter: str = ",") -> None:
    """Write a table with a header: texts, labels, probabilities, reasons, and ids and metadata if there are any."""
    from ctx_embed.rows.writing import CSV_END, CsvOutput

    found = list(rows)
    why = ["explanation"] if any("explanations" in row for row in found) else []
    named = [name for name in ("id", "text", "metadata") if any(name in row for row in found)]
    writer = csv.writer(CsvOutput(file), lineterminator=CSV_END, delimiter=delimiter)
    writer.writerow([*named, "label", "probability", *why])
    for row in found:
        if "metadata" in row:
            row["metadata"] = json.dumps(row["metadata"], ensure_ascii=False)
        # Readers take a number with trailing zeros, such as a version 1.10, as text.
        writer.writerow([*(row.get(name) for name in named), *_cells(row, digits="")])


WRITERS: dict[str, Callable[[TextIO, Iterator[Row]], None]] = {
    ".jsonl": _write_jsonl,
    ".json": _write_json,
    ".csv": _write_table,
    ".tsv": partial(_write_table, delimiter="\t"),
}


@command()
@click.argument("model", metavar="MODEL")
@click.argument("source", metavar="INPUT")
@field_options
@encoding_option
@output_option("Write FILE.jsonl, .json, .csv or .tsv instead.", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="Print one JSON object per line.")
@click.option("--evaluate", is_flag=True, help="INPUT is labelled: print precision, recall, F1 and confusion matrix.")
@click.option(
    "--explain", is_flag=True, help="Show how much the meaning, words and pairs of words speak for each label."
)
@click.option(
    "--device",
    metavar="NAME",
    help="Device as in sentence-transformers, e.g. cuda.  [default: the CPU, without torch if possible]",
)
def predict(
    model: str,
    source: str,
    field: str | None,
    label_field: str | None,
    encoding: str | None,
    output: Path | None,
    as_json: bool,
    as_jsonl: bool,
    evaluate: bool,
    explain: bool,
    device: str | None,
) -> None:
    """Predict the labels of the texts of INPUT with a MODEL folder made by `ctx-embed train`.

    INPUT is text (one text per line, blank lines are skipped), CSV, TSV, JSON or Parquet, plain or gzip, or - for
    standard input. The output has a row for each row of INPUT, in order: the label, its probability and the text,
    separated by tabs; several labels of a text are separated by commas. Files and JSON also have ids and all other
    fields of INPUT, as `metadata`; JSON has the probabilities of all labels.

    With --explain, each row also says why. The logit of a label, minus the mean logit of all labels, is the sum of
    three parts: the meaning, the words and pairs of words, and a bias. The words in brackets after the meaning are
    those whose removal would change it most.

    With --evaluate, INPUT has lines label<TAB>text or is a table with labels, as for `ctx-embed train`, and the report
    is printed; -o FILE also writes the predictions.

    \b
    Example: ctx-embed predict reviews-model new.txt
    Example: echo "great food" | ctx-embed predict reviews-model - --jsonl
    Example: ctx-embed predict reviews-model new.txt --explain
    Example: ctx-embed predict reviews-model test.tsv --evaluate
    """
    if as_json and as_jsonl:
        raise click.UsageError("--json and --jsonl cannot be combined")
    if output and (as_jsonl or (as_json and not evaluate)):
        raise click.UsageError("the name of -o FILE sets the format; leave out --json and --jsonl")
    if evaluate and as_jsonl:
        raise click.UsageError(
            "--evaluate prints only its report; add --json to get it as JSON, -o FILE to write the predictions"
        )
    if label_field and not evaluate:
        raise click.UsageError("--label-field needs --evaluate")
    if output and output.suffix.lower() not in WRITERS:
        raise InputError(f"cannot write {output}: its name must end in {', '.join(WRITERS)}")
    from ctx_embed.classify.labelled import Labelled, first_labels
    from ctx_embed.classify.predictor import Predictor
    from ctx_embed.files import replaced_file, require_file, require_other_file
    from ctx_embed.rows.opening import source_name
    from ctx_embed.rows.reading import read_documents

    if output:
        require_file(output)
        require_other_file(output, source)
    if source != "-" and not Path(source).exists():
        text = "" if Path(source).suffix else f"; for one text: echo {shlex.quote(source)} | ctx-embed predict MODEL -"
        raise InputError(f"{source}: no such file{text}")
    predictor = Predictor.load(model, device)
    head = predictor.head
    printed = not (as_json or as_jsonl or (output and output.suffix.lower() in (".jsonl", ".json")))
    if head.multi_label and printed and (torn := next((label for label in head.labels if "," in str(label)), None)):
        raise InputError(f"the label {torn!r} has a comma, which separates labels in lines; add --jsonl")
    data = None
    if evaluate:
        data = Labelled.read(source, field, label_field, head.multi_label, encoding).matched(head.labels)
        if unknown := data.unknown(head.labels):
            if not data.label_set() & set(head.labels):
                raise InputError(
                    f"{source_name(source)}: the classifier knows none of its labels ({unknown}), "
                    f"only {first_labels(head.labels)}"
                )
            click.echo(f"Warning: labels that the classifier does not know count as wrong: {unknown}", err=True)
    documents = map(Document, data.texts) if data else read_documents(source, field, encoding=encoding)
    if (document := next(documents, None)) is None:
        raise InputError(f"{source_name(source)}: no texts to label")
    found: list[Any] = []
    predicted = predicted_rows(predictor, chain([document], documents), found if evaluate else None, explain)
    tally = count()
    rows = (row for row, _ in zip(predicted, tally, strict=False))
    if output:
        with replaced_file(output) as beside, beside.open("w", encoding="utf-8", newline="") as file:
            WRITERS[output.suffix.lower()](file, rows)
        # With --evaluate, only the report goes to standard output.
        click.echo(f"{counted(next(tally), 'prediction')} in {output}", err=evaluate)
    elif not evaluate:
        (_write_json if as_json else _write_jsonl if as_jsonl else _write_lines)(sys.stdout, rows)
    else:
        deque(rows, maxlen=0)
    if data:
        from ctx_embed.classify.labelled import as_text, report

        result = report(found, data, head.labels)
        click.echo(json.dumps(result, ensure_ascii=False) if as_json else as_text(result))


def predicted_rows(
    predictor: Predictor,
    documents: Iterable[Document],
    found: list[Any] | None,
    explain: bool,
) -> Iterator[Row]:
    """Yield a row for each document, without a label if the text is blank; append each prediction to ``found``."""
    head = predictor.head
    waiting = iter(documents)
    while batch := list(islice(waiting, AT_ONCE)):
        texts = [well_formed(document.text) for document in batch]
        logits = predictor.logits(texts)
        chosen = head.chosen(logits)
        if found is not None:
            found.extend(chosen)
        of_texts = head.probabilities(logits).tolist()
        for document, text, label, probabilities in zip(batch, texts, chosen, of_texts, strict=True):
            blank = not text.strip()
            row: Row = {} if document.id is None else {"id": document.id}
            row["text"] = text
            if document.metadata:
                row["metadata"] = document.metadata
            if head.multi_label:
                row["labels"] = None if blank else list(label)
            else:
                row["label"] = None if blank else label
            row["probabilities"] = None if blank else dict(zip(map(str, head.labels), probabilities, strict=True))
            if explain:
                row["explanations"] = (
                    None
                    if blank
                    else [
                        {**vars(each), "words": dict(each.words), "of_meaning": dict(each.of_meaning)}
                        for each in predictor.explain(text)
                    ]
                )
            yield row
