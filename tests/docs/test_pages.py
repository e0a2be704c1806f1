"""Each code block of README and docs runs and prints what its page shows; links lead somewhere; figures agree."""

import itertools
import json
import re
from pathlib import Path

import pytest

from benchmarks import pages
from tests.clients.run import clients
from tests.docs import reference
from tests.docs.pages import PAGES, ROOT, agree, prepare, run, tokens

CARD = ROOT / "ctx_embed" / "pretrained" / "default" / "README.md"
# What stages of the default model's training stored beside the card.
STAGES = ("first-stage.json", "training.json")
RECORDED = json.loads((ROOT / "benchmarks" / "recorded.json").read_text(encoding="utf-8"))


def said(file: Path | str) -> str:
    """The text of a file, with all space as one."""
    return " ".join((ROOT / file).read_text(encoding="utf-8").split())


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# `make docs` runs the notebooks, too, and fails if one does.
BLOCKS = [pytest.param(page, marks=[pytest.mark.slow] * ("file_format: mystnb" in said(page))) for page in PAGES]


@pytest.mark.filterwarnings("ignore")  # as a user sees it: what other packages deprecate says nothing
@pytest.mark.parametrize("page", BLOCKS, ids=name)
def test_the_blocks_of_a_page(page, tmp_path, monkeypatch):
    # A reader has the data of the examples alone.
    monkeypatch.delenv("CTX_EMBED_DATA", raising=False)
    folder = prepare(tmp_path, page)
    # Who repeats README's commands gets the same again.
    for _ in range(2 if page.name == "README.md" else 1):
        for step, printed in run(page, folder):
            if step.output is not None:
                assert agree(step.output, printed), f"{page}:{step.line} shows\n{step.output}\nand prints\n{printed}"


def anchors(page: Path) -> set[str]:
    """The names that GitHub and Sphinx give the headings of a page."""
    found = tokens(page)
    titles = [after.content for token, after in itertools.pairwise(found) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, CARD], ids=name)
def test_links_lead_to_files_and_headings(page):
    for child in (child for token in tokens(page) for child in token.children or ()):
        target = str(child.attrs.get("href", child.attrs.get("src", "https://")))
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert "://" in target or file.exists(), f"{page}: {target}: no such file"
        if anchor and "://" not in target and file.suffix != ".py":
            assert anchor in anchors(file), f"{page}: {target}: no such heading"


@pytest.mark.filterwarnings("ignore")  # theirs
def test_the_page_of_names_is_that_of_the_code():
    for module in ("chromadb", "langchain_core", "llama_index", "mteb", "sklearn"):
        pytest.importorskip(module)
    shown, now = (re.split(r"#L(\d+)", text) for text in (reference.PAGE.read_text(encoding="utf-8"), reference.page()))
    assert shown[::2] == now[::2], "run make pages"
    # Lines move with each change above them; make pages brings them up to date.
    assert all(abs(int(there) - int(here)) < 100 for there, here in zip(shown[1::2], now[1::2], strict=True))


def test_the_scores_and_the_speed_of_the_readme_are_those_of_the_card_and_of_the_stored_results():
    readme, card = (file.read_text(encoding="utf-8").splitlines() for file in (ROOT / "README.md", CARD))
    rows = {"| **ctx-embed default** |": "| **default**", "| all-MiniLM-L6-v2 |": "| all-MiniLM-L6-v2"}
    for ours, theirs in rows.items():
        (row,) = (line for line in readme if line.startswith(ours))
        *scores, _, retrieval, _, _ = re.findall(r"\d[\d.,]*", row.removeprefix(ours))
        known = {number for line in card if line.startswith(theirs) for number in re.findall(r"\d+\.\d", line)}
        assert {*scores, retrieval} <= known, f"{ours} {set(scores) - known} not in the model card"
    assert pages.printed(pages.CLAIM).strip() in said("README.md")


@pytest.mark.parametrize(("command", "page"), pages.TABLES.items())
def test_a_table_is_that_of_the_stored_results(command, page):
    assert pages.printed(command) in (ROOT / page).read_text(encoding="utf-8"), "run python benchmarks/pages.py"


@pytest.mark.parametrize("table", RECORDED["tables"], ids=lambda table: table["section"])
def test_a_table_from_before_results_were_stored_is_as_recorded(table):
    lines = [line.strip() for line in (ROOT / table["page"]).read_text(encoding="utf-8").splitlines()]
    shown = itertools.takewhile(lambda line: line.startswith("|"), lines[lines.index(table["head"]) + 2 :])
    assert list(shown) == [row["row"] for row in table["rows"]]
    assert all(re.fullmatch("[0-9a-f]{7}", row["recorded"]) for row in table["rows"])


@pytest.mark.parametrize("page", sorted({sentence["page"] for sentence in RECORDED["sentences"]}))
def test_a_figure_in_a_sentence_is_as_recorded(page):
    for sentence in RECORDED["sentences"]:
        assert sentence["page"] != page or sentence["says"] in said(page)
        assert re.fullmatch("[0-9a-f]{7}", sentence["recorded"])


def test_the_card_says_what_training_stored():
    first, second = (json.loads(CARD.with_name(name).read_text(encoding="utf-8")) for name in STAGES)
    before, after = first["history"][0], first["history"][first["kept_epoch"]]
    one, other = "held_out_distance", "held_out_second_distance"
    for sentence in (
        f"{second['phrases']:,} phrases",
        f"{first['trained_texts']:,} texts, {first['options']['epochs']} epochs at",
        f"{second['history'][-1]['step']} batches at",
        f"The teacher is the first stage, on {second['trained_texts']:,} texts",
        f"left out: {first['excluded_texts']:,} texts in the first stage and {second['excluded_texts']} in the second",
        f"is {after[one]:.3f} to all-MiniLM-L6-v2 ({before[one]:.3f} before it, in the permissive model) and",
        f"and {after[other]:.3f} to all-mpnet-base-v2 ({before[other]:.3f})",
        f"is predicted with an accuracy of {100 * after['held_out_label_accuracy']:.1f} %",
    ):
        assert sentence in said(CARD)


def test_each_promise_names_tests_that_exist():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`", page)
    assert len(named) > 20
    for path, test in named:
        assert (ROOT / path).exists(), path
        assert not test or re.search(rf"(def|class) {test}\b", (ROOT / path).read_text(encoding="utf-8")), test


CLIENTS = clients()
# Those that the extras of the tests bring; `make clients` runs all, each in an environment of its own.
INSTALLED = {"LangChain": "langchain_core", "LlamaIndex": "llama_index", "Chroma": "chromadb"}
INSTALLED |= {"scikit-learn": "sklearn", "MTEB": "mteb"}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.filterwarnings("ignore")  # theirs
def test_a_program_of_the_page_of_clients_is_short_python_that_runs(name):
    program = compile(CLIENTS[name].program, name, "exec")
    # Closing brackets apart.
    lines = [line for line in CLIENTS[name].code.splitlines() if line and not line.startswith((" ", ")"))]
    assert len(lines) <= 3
    if name in INSTALLED:
        pytest.importorskip(INSTALLED[name])
        exec(program, {})
