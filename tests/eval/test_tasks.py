"""Tasks: their catalogue, where their data come from, and the formats of their files."""

import json
import shutil
from dataclasses import replace

import datasets
import pytest

from ctx_embed.eval import tasks as catalogue
from ctx_embed.eval.tasks import READERS, TASKS, DataReader, find_tasks
from tests.eval.conftest import write_collection
from tests.helpers.errors import error


def test_the_suites():
    assert [task.name for task in find_tasks([])] == ["MR", "CR", "SUBJ", "MPQA"]
    tasks = find_tasks(catalogue.SUITES["mteb"])
    assert [task.kind for task in tasks] == 3 * ["probe"] + 5 * ["similarity"]
    per_label = {"MTEB-Banking77": 8, "MTEB-AmazonCounterfactual": 32, "MTEB-IMDB": 8}
    assert {task.name: task.per_label for task in tasks[:3]} == per_label
    # One correlation over all pairs, none left out.
    assert {file.subset for task in tasks[3:] for layout in task.layouts for file in layout} == {"test"}
    assert not any(task.without for task in tasks[3:])
    assert all(task.published["all-MiniLM-L6-v2 (published)"] for task in tasks)
    assert set(catalogue.MTEB_PUBLISHED) == {"source", "date", "scores"}
    # Every published figure has a source, and every task its parts.
    for task in TASKS.values():
        assert set(task.published) <= set(catalogue.PUBLISHED_SOURCES)
        subsets = [{file.subset for file in layout} for layout in task.layouts]
        if task.hub is not None:
            subsets += [{subset for source in (task.hub, *task.hub.others) for subset in source.splits}]
        assert all(other == subsets[0] for other in subsets)
    sources = {name for name in catalogue.PUBLISHED_SOURCES if not name.startswith("BM25") and "(pub" not in name}
    assert all(sources == set(TASKS[name].published) for name in catalogue.DEFAULT_TASKS)


def test_names_and_paths_each_once_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.tsv"
    path.write_text("a\tb\n")
    write_collection(tmp_path / "beir")
    tasks = find_tasks(["STSB", str(path), "MR", "STSB", str(tmp_path / "beir")])
    assert [task.name for task in tasks] == ["STSB", str(path), "MR", str(tmp_path / "beir")]
    assert [task.kind for task in tasks] == ["similarity", "probe", "probe", "retrieval"]
    message = f"{tmp_path}: the folder has no corpus.jsonl; a task must be a name, a labelled file or a folder in BEIR"
    assert error(find_tasks, [str(tmp_path)]).startswith(message)
    assert error(find_tasks, ["sub/mine"]) == "sub/mine: no such file"


# Data
REMEDY = "name a folder that holds it with --data or CTX_EMBED_DATA"


def fails(message: str, task, folder=None) -> None:
    assert error(lambda: DataReader(folder).read(task)) == message


def test_pairs_of_stsb_dev_are_left_out_in_either_order_and_what_is_absent_or_broken_is_named(folder):
    data = DataReader(folder).read(TASKS["STS13"])
    # One pair of STSB-dev has its texts exchanged; every pair of OnWN is in STSB-dev.
    assert {name: len(rows) for name, rows in data.subsets.items()} == {"STS13_FNWN": 7, "STS13_headlines": 7}
    assert (data.left_out, data.subsets["STS13_FNWN"][0]) == (12, ("1.5", "left 1", "right 1"))
    senteval = folder / "senteval"
    for subset in ("FNWN", "headlines"):
        shutil.copy(senteval / "STSB_test.tsv", senteval / f"STS13_{subset}.tsv")
    fails("STS13: every pair also occurs in STSB-dev, so none is left", TASKS["STS13"], folder)
    absent = folder / "absent"
    fails(f"{absent}: no such data folder; name one that exists with --data or CTX_EMBED_DATA", TASKS["MR"], absent)
    fails(f"CR: {senteval / 'CR.tsv'} is missing; {REMEDY}", TASKS["CR"], folder)
    (senteval / "MR.tsv").write_text("0\tbad\n2\tworse\n")
    fails(f"MR: labels must be 0 (negative), 1 (positive); got '2' in {folder}", TASKS["MR"], folder)
    queries = folder / "retrieval" / "adi" / "queries.jsonl"
    queries.write_text(queries.read_text().replace('"_id": "3"', '"_id": "2"'))
    fails("adi: query ids must differ, got '2' twice", TASKS["adi"], folder)


def test_the_splits_parts_and_labels_of_a_hub_set(tmp_path, monkeypatch):
    """A folder, which `datasets` reads by the same call."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hub, columns = tmp_path / "hub", ("label", "sentence")
    hub.mkdir()
    rows = '{"label": 0, "sentence": "bad"}\n{"label": 1, "sentence": "good\\tbetter"}\n'
    (hub / "train.jsonl").write_text(rows)
    (hub / "test.jsonl").write_text('{"label": 1, "sentence": "fine"}\n')
    task = catalogue.Task("probe", "HUB", (), 3, catalogue.HubSource(str(hub), columns, {"HUB": ("train", "test")}))
    data = DataReader(None).read(replace(task, labels={"0": "negative", "1": "positive"}))
    assert data.subsets == {"HUB": [("0", "bad"), ("1", "good\tbetter"), ("1", "fine")]}
    assert not data.is_altered
    parts = catalogue.HubSource(str(hub), columns, {"train": ("train",), "test": ("test",)}, labels={"0": "NO"})
    data = DataReader(None).read(replace(task, hub=parts))
    assert data.subsets == {"train": [("NO", "bad"), ("1", "good\tbetter")], "test": [("1", "fine")]}
    for columns, split in (("label", "text"), "train"), (("label", "sentence"), "dev"):
        lacks = f"it has no split {split!r} with the columns {', '.join(columns)}"
        absent = replace(task, hub=catalogue.HubSource(str(hub), columns, {"HUB": (split,)}))
        fails(f"HUB: {hub} could not be loaded from the hub ({lacks}); {REMEDY}", absent)


def test_an_unreachable_hub_is_asked_once(monkeypatch):
    asked = []

    def load_dataset(name, configuration, revision):
        asked.append((name, configuration))
        raise ConnectionError("no network\nand more")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    reader = DataReader(None)
    for name, message in (
        ("CR", "mattymchen/cr could not be loaded from the hub (no network)"),
        ("SUBJ", "SetFit/subj could not be loaded from the hub"),
        ("STS12", "the hub has no suitable copy"),
    ):
        assert error(reader.read, TASKS[name]) == f"{name}: {message}; {REMEDY}"
    assert asked == [("mattymchen/cr", None)]


def test_sentevals_own_files_serve_as_well_and_other_rows_than_those_measured_are_noticed(folder, tmp_path):
    reader, layout = DataReader(folder), (catalogue.File("MR", "senteval/MR.tsv", TASKS["MR"].layouts[0][0].read),)
    task = catalogue.Task("probe", "MR", (layout,), sha256="0" * 64)
    assert reader.read(task).is_altered
    assert not reader.read(replace(task, sha256=reader.read(task).sha256)).is_altered
    # Of another layout nothing is known.
    absent = (catalogue.File("MR", "absent.tsv", layout[0].read),)
    assert not reader.read(replace(task, layouts=(absent, layout))).is_altered
    (tmp_path / "MR").mkdir()
    (tmp_path / "MR" / "rt-polarity.pos").write_bytes(b"so caf\xe9\n")
    (tmp_path / "MR" / "rt-polarity.neg").write_text("so dull\n")
    assert DataReader(tmp_path).read(TASKS["MR"]).subsets == {"MR": [("1", "so café"), ("0", "so dull")]}


def test_what_a_reader_of_the_scores_must_know_of_a_collection(tmp_path):
    corpus = {"1": "Wings of birds", "2": "How do birds fly?", "3": "Ships sail.", "4": "Why do ships sail?"}
    queries = {"2": "how do birds fly", "1": "another text of this number", "4": "Why do ships sail?"}
    write_collection(tmp_path)
    for name, texts in (("corpus", corpus), ("queries", queries)):
        lines = (json.dumps({"_id": id, "text": text}) + "\n" for id, text in texts.items())
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    judgements = tmp_path / "qrels" / "test.tsv"
    judgements.write_text("2\t1\t1\n2\t1\t2\n2\tgone\t1\n9\t1\t1\n1\t3\t0\n1\t3\t0\n4\t4\t1\n")
    (task,) = find_tasks([str(tmp_path)])
    data = DataReader(None).read(task)
    # The query 1 has only the number of a document, and 4 is judged an answer to itself.
    assert data.own == {"2"}
    assert data.remarks == (
        "1 of 5 judgements of unknown queries, such as '9': these are left out",
        "1 of 5 judgements of unknown documents, such as 'gone': these count as not found, as in trec_eval",
        "1 of 5 judgements that contradict others, such as ('2', '1'): the last counts",
        "1 of 3 queries that are documents too, such as '2': each is left out of its own results, as in BEIR",
    )
    judgements.write_text("2\tgone\t1\n9\t1\t1\n")
    fails(f"{tmp_path}: no judgement names a query and a document of the collection", task)


QUESTION = [{"coarse_label": 2, "text": "What is it ?"}]
HUB = {
    ("BeIR/scifact", "corpus", None): {"corpus": [{"_id": "1", "title": "On wings", "text": "They fly."}]},
    ("BeIR/scifact", "queries", None): {"queries": [{"_id": "7", "title": "", "text": "What flies?"}]},
    ("BeIR/scifact-qrels", None, None): {"test": [{"query-id": 7, "corpus-id": 1, "score": 1}]},
    # A set that the hub keeps as a script is read from its Parquet copy.
    ("CogComp/trec", None, "refs/convert/parquet"): {"train": QUESTION, "test": QUESTION},
}


def test_sets_of_the_hub(monkeypatch):
    def load_dataset(name, configuration, revision):
        parts = HUB[name, configuration, revision].items()
        return datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in parts})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    corpus, queries, row = [("1", "On wings They fly.")], [("7", "What flies?")], ("2", "What is it ?")
    expected = {"corpus": corpus, "queries": queries, "qrels": [("7", "1", "1")]}
    assert DataReader(None).read(TASKS["scifact"]).subsets == expected
    assert DataReader(None).read(TASKS["TREC"]).subsets == {"train": [row], "test": [row]}
    assert {name for name, task in TASKS.items() if task.hub and task.hub.revision} == {"TREC", "SICK-E", "SICK-R"}


ELSEWHERE = {"SST2", "SST5", "TREC", "MRPC", "SICK-E", "SICK-R", "STS16", "scifact", "nfcorpus", "fiqa", "scidocs"}


def test_real_data_have_the_published_rows(data):
    reader = DataReader(data)
    for task in TASKS.values():
        # Reading IMDB takes seconds.
        if task.name not in ELSEWHERE | {"IMDB"}:
            read = reader.read(task)
            assert read.rows + read.left_out == task.rows
            assert read.left_out == {"STS12": 259, "STS13": 81, "STS14": 193, "STS15": 580}.get(task.name, 0)
            assert not read.is_altered


# Formats of files
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
SICK += "1\tA man runs\tA man sits\t3.2\tNEUTRAL\n2\tIt rains\tRain falls\t4.7\tENTAILMENT\n"
MRPC = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said "no .\tHe said no .\n'
STSB = "main-news\tMSRpar\t2012test\t0001\t5.000\ta\tb\nmain\tx\t2012\t2\t0.5\tc\td\tlicence\tx\n"
DOCUMENTS = '{"_id": "7", "title": "On wings", "text": "They fly."}\n{"_id": "8", "text": "Alone."}\n'


@pytest.mark.parametrize(
    ("form", "content", "rows"),
    [
        ("label, text, text", "1\ta\tb\n", [("1", "a", "b")]),
        ("label, stars, text", "1\t9\tso good\n", [("1", "so good")]),
        ("negative", "dull .\n\nlong .\n", [("0", "dull ."), ("0", "long .")]),
        ("SST fine", "0 dull and long\n1 fine\n", [("0", "dull and long"), ("1", "fine")]),
        ("SST binary", "a joy\t1\na bore\t0\n", [("1", "a joy"), ("0", "a bore")]),
        ("SICK entailment", SICK, [("NEUTRAL", "A man runs", "A man sits"), ("ENTAILMENT", "It rains", "Rain falls")]),
        ("SICK relatedness", SICK, [("3.2", "A man runs", "A man sits"), ("4.7", "It rains", "Rain falls")]),
        ("TREC", b"DESC:manner How ?\nNUM:date When was caf\xe9 ?\n", [("DESC", "How ?"), ("NUM", "When was café ?")]),
        ("MRPC", MRPC, [("1", 'He said "no .', "He said no .")]),
        ("STS benchmark", STSB, [("5.000", "a", "b"), ("0.5", "c", "d")]),
        ("documents", DOCUMENTS, [("7", "On wings They fly."), ("8", "Alone.")]),
        # With and without a header.
        ("judgements", "query-id\tcorpus-id\tscore\n1\t7\t2\n1\t8\t-1\n", [("1", "7", "2"), ("1", "8", "-1")]),
        ("judgements", "1\t2\t1\n1\t3\t0\n", [("1", "2", "1"), ("1", "3", "0")]),
    ],
)
def test_rows(form, content, rows, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert READERS[form](path) == rows


def test_pairs_without_a_score_are_left_out(tmp_path):
    path, scores, read = tmp_path / "STS.input.headlines.txt", tmp_path / "STS.gs.headlines.txt", READERS["STS input"]
    path.write_text("a\tb\nc\td\ne\tf\n")
    assert "STS.gs.headlines.txt is missing; it must hold the scores of " in error(read, path)
    scores.write_text("1.5\n\n")
    assert error(read, path) == f"{scores} must hold a score for each of 3 pairs in {path}, got 2"
    scores.write_text("1.5\n\nx\n")
    assert error(read, path) == f"{scores}, line 3: the score must be a number, got 'x'"
    scores.write_text("1.5\n\n4\n")
    assert read(path) == [("1.5", "a", "b"), ("4", "e", "f")]


def test_broken_files(tmp_path):
    path = tmp_path / "data.jsonl"
    for form, content, message in (
        ("label, text, text", "1\ta\n", "line 1: must be label<TAB>text<TAB>text, got '1\\ta'"),
        ("SST fine", "1 a\nalone\n", "line 2: must be label text, got 'alone'"),
        ("SICK relatedness", "head\n1\ta\tb\tx\tNEUTRAL\n", "line 2: must be pair_ID"),
        ("positive", "\n", "must have lines of text, got none"),
        ("MRPC", "head\n", "must have lines of Quality<TAB>"),
        ("score, text, text", "1.0\ta\tb\nnan\ta\tb", "line 2: must be score<TAB>text<TAB>text, got 'nan\\ta\\tb'"),
        ("score, text, text", "1.0\ta\tb\tc", "line 1: must be score<TAB>text<TAB>text, got "),
        ("documents", '{"_id": 1.5, "text": "a"}\n', "the id '_id' must be a string or an integer, got a float"),
        ("judgements", "q\td\ts\n1\t2\t0.5\n", "the score of '1' and '2' must be an integer, got '0.5'"),
        ("TREC", "DESC How ?\n", "line 1: must be COARSE:fine question, got 'DESC How ?'"),
    ):
        path.write_text(content)
        said = error(READERS[form], path)
        assert said.startswith(str(path))
        assert message in said
