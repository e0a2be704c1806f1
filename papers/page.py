"""Put claims and tables of papers/results into papers/README.md: ``python -m papers.page [RESULTS.json ...]``.

Each results.json of ``python -m papers`` that is named is stored there first, without its parts. Where nobody has spent
the hours again, a cell keeps what an earlier page recorded, with the commit of that page.
"""

import json
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from papers import pretraining, settling
from papers.attended_words import CHOSEN, CLASSES, TABLE4_PLACES, in_paper, label_of
from papers.catalogue import EXPERIMENTS
from papers.classifier_cells import INITIAL
from papers.complexity import EXPONENTS, ORDERS
from papers.experiment import UNKNOWN, Cell, Figures, Found, Outcome
from papers.lama import BERT, COUNTED, COUNTS, CTX, GRU, LAMA, ON_IMDB, OURS, SAN, SYSTEMS, TE
from papers.tables import PUBLISHED_ACCURACY, SCRATCH, SIZES, TABLE4_TASKS, TRANSFORMER
from papers.variants import MATRICES

README = Path(__file__).with_name("README.md")
RESULTS = Path(__file__).with_name("results")
TIMES = Path(__file__).with_name("batch_times.json")
WIDTH = 140
# Table 3 with the random weights of torch, and also with a uniform context redrawn at each reading.
TORCH = "table3-head=random-token_deviation=1"
REDRAWN = f"{TORCH}-redrawn=true"
TASKS = {"AG news": "AGNEWS", "R8": "R8", "IMDB": "IMDB", "Yelp sentences": "YELP", "Amazon reviews": "AMAZON"}
PUBLISHED = {
    "AGNEWS": "the paper, UCI News",
    "R8": "the paper, Reuters",
    "IMDB": "the paper, IMDB",
    "YELP": "the paper, Yelp reviews, 5 classes",
}


def stored(name: str) -> dict[str, Any]:
    """Return a stored run."""
    run: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return run


def found_in(name: str) -> Found:
    """Return the figures of a stored run by row and column."""
    found = {(cell["row"], cell["column"]): cell["figures"] for cell in stored(name)["cells"] if cell["figures"]}
    for row in times() if name == "table2" else []:
        found.get((row["encoder"], row["size"]), {}).update(ms=row["ms"], training_ms=row["training_ms"])
    return found


def times() -> list[dict[str, Any]]:
    """Return what `python -m papers.batch_times` has stored."""
    rows: list[dict[str, Any]] = json.loads(TIMES.read_text(encoding="utf-8"))
    return rows


def claim(name: str) -> str:
    """Return the claim, our measurement and the verdict of a stored run."""
    outcomes = [Outcome(Cell(*place, {}), {}, figures) for place, figures in found_in(name).items()]
    return EXPERIMENTS[name].claim.line(outcomes)


def table(heads: Sequence[object], rows: Iterable[Sequence[object]], texts: int = 1) -> str:
    """Return a Markdown table whose first ``texts`` columns are text, the others numbers."""
    lines = ["|" + "|".join(f" {cell} " if cell != "" else " " for cell in cells) + "|" for cells in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * texts + "--:|" * (len(heads) - texts), *lines[1:]])


def accuracy(figures: Figures | None, unknown: str = "") -> str:
    """Return accuracy and standard deviation; in brackets the number of folds if only some were run."""
    if not figures:
        return unknown
    std, folds = figures.get("std"), figures.get("tests", 1)
    return f"{figures['accuracy']:.1f}" + (f" ± {std:.1f}" if std else "") + (f" ({folds})" if 1 < folds < 10 else "")


def _table1() -> list[str]:
    found = found_in("table1")

    def row(layer: str) -> list[object]:
        fitted = ", ".join(f"{found[layer, size]['exponent']:.2f}" for size in EXPONENTS[layer])
        return [
            layer,
            ", ".join(EXPONENTS[layer]),
            ORDERS[layer],
            ", ".join(map(str, EXPONENTS[layer].values())),
            fitted,
        ]

    return [table(["layer", "grows", "order (paper)", "exponent (paper)", "fitted"], map(row, EXPONENTS), texts=3)]


def _table2() -> list[str]:
    found = found_in("table2")
    heads = [head for encoder in (OURS, TRANSFORMER) for head in (encoder, "the paper", "ms a batch", "with gradients")]

    def row(size: float) -> list[object]:
        cells: list[object] = [f"{size:g} M"]
        for encoder in (OURS, TRANSFORMER):
            figures = found[encoder, f"{size:g} M"]
            ms = [f"{figures[name]:.1f}" for name in ("ms", "training_ms")]
            cells += [accuracy(figures), PUBLISHED_ACCURACY[encoder][f"{size:g}"], *ms]
        return cells

    padded = [row for row in times() if row["encoder"] not in (OURS, TRANSFORMER)]
    low, high, trained_low, trained_high = (
        f"{pick(row[name] for row in padded):.1f}"
        for name in ("times as slow", "times as slow, training")
        for pick in (min, max)
    )
    sentence = (
        f"Over torch's padded `TransformerEncoder` the Contextualizer is {low} to {high} times as fast, and "
        f"{trained_low} to {trained_high} times with the backward pass."
    )
    return [table(["size", *heads], map(row, SIZES)), sentence]


def _table3() -> list[str]:
    found = found_in("table3")
    of = {(cell.row, cell.column): cell.published for cell in EXPERIMENTS["table3"].cells}
    heads = ["first context", "steps", "accuracy", "folds", "standard error", "paper"]
    first = [
        [*place, accuracy(found[place]), found[place]["tests"], f"{found[place]['standard_error']:.1f}", of[place]]
        for place in of
    ]
    variants = {"deviation 1, random head": TORCH, "the same, context redrawn at each reading": REDRAWN}
    variants["ours (the table above)"] = "table3"
    rows = [["the paper", *of.values()]]
    for title, name in variants.items():
        run = found_in(name)
        rows.append([title, *(accuracy(run.get(place)) for place in of)])
    return [table(heads, first, texts=2), table(["", *(f"{context}, {steps}" for context, steps in of)], rows)]


def _table4() -> list[str]:
    found = found_in("table4")
    of = {cell.column: cell.published for cell in EXPERIMENTS["table4"].cells if cell.row == SCRATCH}
    rows = [[row, *(accuracy(found[row, task]) for task in TABLE4_TASKS)] for row in (SCRATCH, "DAN", TRANSFORMER)]
    rows.insert(1, ["Contextualizer, the paper", *map(str, of.values())])
    return [table(["encoder", *TABLE4_TASKS], rows)]


def _figure2() -> list[str]:
    rows = [
        [
            cell["row"],
            cell["column"].split()[1],
            cell["settings"].get(INITIAL, {}).get(MATRICES, "") or f"u {cell['settings']['architecture']['rank']}",
            f"{cell['figures']['parameters']:,}",
            accuracy(cell["figures"]),
        ]
        for cell in stored("figure2")["cells"]
    ]
    return [table(["attention", "m", "h or u", "parameters", "accuracy"], rows)]


def _settling_tables() -> list[str]:
    found = found_in("settling")
    measures = {
        "length": ("length of z^k", 1),
        "cosine": ("cos(c^k, c^(k-1))", 3),
        "turn": ("cos(z^k, z^(k-1))", 3),
        "accuracy_at": ("accuracy at c^k", 1),
        "agreement": ("same as c^K, %", 1),
        "certain": ("certain, %", 1),
    }

    def followed(row: str, name: str) -> list[str]:
        title, digits = measures[name]
        values = found[row, f"K {settling.MOST}"][name]
        # The first step has none before it.
        shown = ["" if (name, k) == ("turn", 1) else f"{values[k - 1]:.{digits}f}" for k in settling.SHOWN]
        return [f"{row}: {title}", *shown]

    by_count = [[row, *(accuracy(found.get((row, f"K {k}"))) for k in settling.COUNTS)] for row in settling.ROWS]
    return [
        table(["accuracy with K steps", *settling.COUNTS], by_count),
        table(["", *settling.SHOWN], [followed(row, name) for row in settling.ROWS for name in measures]),
    ]


def _pretraining() -> list[str]:
    found = found_in("pretraining")
    rows = [
        [row, *(accuracy(found[row, task]) for task in TABLE4_TASKS)]
        for row in (pretraining.SCRATCH, pretraining.PRETRAINED)
    ]
    rows.append(["gain, ± its standard error", *(pretraining.gain(found, task) for task in TABLE4_TASKS)])
    return [table(["weights at first", *TABLE4_TASKS], rows)]


def _lama_table3() -> list[str]:
    found, paper = found_in("lama-table3"), found_in("lama-table3-paper")
    systems = [*list(SYSTEMS)[:-1], BERT, OURS]
    as_in_paper = [
        [title, *(accuracy(paper.get((system, task)), UNKNOWN) for system in systems if system != BERT)]
        for title, task in TASKS.items()
        if any((system, task) in paper for system in systems)
    ]
    cells = {(cell.row, cell.column): cell for cell in EXPERIMENTS["lama-table3"].cells}
    rows: list[list[object]] = []
    for title, task in TASKS.items():
        best = max(found[system, task]["accuracy"] for system in systems if (system, task) in found)
        values = [found.get((system, task)) for system in systems]
        shown = [accuracy(figures, UNKNOWN) for figures in values]
        bold = [figures is not None and figures["accuracy"] == best for figures in values]
        rows.append([title, *(f"**{text}**" if is_best else text for text, is_best in zip(shown, bold, strict=True))])
        if task in PUBLISHED:
            of = [cells[system, task] for system in systems]
            rows.append([PUBLISHED[task], *(cell.published or next(iter(cell.beside.values()), "") for cell in of)])
    counts = [found.get((system, "R8"), {}).get("parameters") for system in systems]
    rows.append(["parameters", *("" if count is None else f"{count:,}" for count in counts)])
    return [
        table(["test accuracy", *systems], rows),
        table(["with `--paper`", *(system for system in systems if system != BERT)], as_in_paper),
    ]


def _lama_figure3() -> list[str]:
    found, columns = found_in("lama-figure3"), [f"{n} head{'s'[: n - 1]}" for n in COUNTS]
    by_system = [[system, *(accuracy(found[system, column]) for column in columns)] for system in (LAMA, SAN, TE)]
    of_imdb = [found[ON_IMDB, column] for column in columns]
    by_epoch: list[list[object]] = [
        [f"epoch {number}", *(f"{each:.1f}" for each in of_epoch)]
        for number, of_epoch in enumerate(zip(*(figures["valid"] for figures in of_imdb), strict=True), 1)
    ]
    by_epoch.append(["test part, best epoch", *map(accuracy, of_imdb)])
    return [table(["heads", *COUNTS], by_system), table(["heads, LAMA on IMDB", *COUNTS], by_epoch)]


def _lama_figure4() -> list[str]:
    found, counts = found_in("lama-figure4"), (1, 4, 16, 64)
    rows = [
        [
            system + (", u in place of heads" if system == OURS else ""),
            *(f"{found[system, str(n)]['parameters']:,}" for n in counts),
        ]
        for system in COUNTED
    ]
    return [table(["", *counts], rows)]


def _lama_figure5() -> list[str]:
    found, epochs = found_in("lama-figure5"), (1, 2, 4, 6, 10)
    rows = [
        [system, *(f"{found[system, 'R8']['loss'][epoch - 1]:.3f}".lstrip("0") for epoch in epochs)]
        for system in (SAN, GRU, TE, LAMA, CTX, OURS)
    ]
    return [table(["epoch", *epochs], rows)]


def _lama_table4() -> list[str]:
    found = found_in("lama-table4")
    rows = [
        [
            place,
            ", ".join(found[LAMA, place]["most_attended"][label_of(place)][:10]),
            in_paper(place, found[LAMA, place]),
            accuracy(found[LAMA, place]),
        ]
        for place in TABLE4_PLACES
    ]
    return [
        table(["class", "most attended, first 10", "the paper's words above uniform (listed)", "accuracy"], rows, 2)
    ]


def _lama_figure2() -> list[str]:
    found = found_in("lama-figure2")
    tables = []
    for task, classes in CLASSES.items():
        words = [word for chosen in CHOSEN[task] for word in chosen]
        rows = [
            [name, *(_attention(found[word, task]["attention"].get(label, {}).get(word)) for word in words)]
            for label, name in classes.items()
        ]
        tables.append(table([f"attention on {task}", *words], rows))
    return tables


def _attention(weight: float | None) -> str:
    return "too rare" if weight is None else f"{weight:.2f}"


# What the page shows of each stored run; its first line is where it goes.
TABLES: dict[str, Callable[[], list[str]]] = {
    "table1": _table1,
    "table2": _table2,
    "table3": _table3,
    "table4": _table4,
    "figure2": _figure2,
    "settling": _settling_tables,
    "pretraining": _pretraining,
    "lama-table3": _lama_table3,
    "lama-table4": _lama_table4,
    "lama-figure2": _lama_figure2,
    "lama-figure3": _lama_figure3,
    "lama-figure4": _lama_figure4,
    "lama-figure5": _lama_figure5,
}


def put(page: str, block: str, opening: str) -> str:
    """Return the page with a block in the place of the lines that begin with ``opening``, up to an empty one."""
    lines = page.split("\n")
    (start,) = (place for place, line in enumerate(lines) if line.startswith(opening))
    old = len(list(takewhile(bool, lines[start:])))
    return "\n".join([*lines[:start], block, *lines[start + old :]])


def filled(page: str) -> str:
    """Return the page with all claims and tables of the stored runs."""
    for name, make in TABLES.items():
        text = claim(name)
        wrapped = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
        page = put(page, "\n".join(wrapped), text[:50])
        for block in make():
            page = put(page, block, block.split("\n")[0] if block.startswith("|") else block[:40])
    return page


def store(path: Path) -> None:
    """Store a results.json under the name of its experiment and options, a line for each cell.

    Cells that it did not compute stay as they are, with the commits and processors that computed them.
    """
    run = json.loads(path.read_text(encoding="utf-8"))
    # The page makes it of all cells.
    del run["claim"]
    words = shlex.split(run["command"])[3:]
    name = "-".join(word.removeprefix("--") for word in words if word != "--option" and not word.startswith("start="))
    before = stored(name) if (RESULTS / f"{name}.json").exists() else {"cells": []}
    earlier = {cell["cell"]: cell for cell in before["cells"]}
    for cell in run["cells"]:
        cell.pop("parts")
    kept = [cell["cell"] for cell in run["cells"] if not cell["figures"] and cell["cell"] in earlier]
    run["cells"] = [
        earlier[cell["cell"]] if cell["cell"] in kept else cell
        for cell in run["cells"]
        if cell["figures"] or cell["cell"] in kept
    ]
    if any("recorded" not in earlier[cell] for cell in kept):
        for key in ("commit", "processor"):
            run[key] = ", ".join(dict.fromkeys([*before[key].split(", "), *run[key].split(", ")]))
    if any("recorded" in cell for cell in run["cells"]):
        run["recorded"] = before["recorded"]
    cells = [json.dumps(cell, ensure_ascii=False) for cell in run.pop("cells")]
    head = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in run.items()]
    text = ",\n".join([*head, '"cells": [\n' + ",\n".join(cells) + "\n]"])
    (RESULTS / f"{name}.json").write_text("{\n" + text + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        store(Path(argument))
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
