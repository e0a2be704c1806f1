import json
import re

import datasets
import pytest

from ctx_embed.eval.tasks.catalogue import TASKS, File, HubSource, Task, find_tasks
from ctx_embed.eval.tasks.data import DataReader
from tests.helpers.errors import error

REMEDY = "name a folder that holds it with --data or CTX_EMBED_DATA"


def fails(message: str, task, folder=None) -> None:
    assert error(lambda: DataReader(folder).read(task)) == message


def test_pairs_of_stsb_dev_are_left_out_in_either_order(folder):
    data = DataReader(folder).read(TASKS["STS13"])
    # One pair of STSB-dev has its texts exchanged; every pair of OnWN is in STSB-dev.
    assert {name: len(rows) for name, rows in data.subsets.items()} == {"STS13_FNWN": 7, "STS13_headlines": 7}
    assert data.left_out == 12
    assert data.subsets["STS13_FNWN"][0] == ("1.5", "left 1", "right 1")
    senteval = folder / "senteval"
    for subset in ("FNWN", "headlines"):
        (senteval / f"STS13_{subset}.tsv").write_bytes((senteval / "STSB_test.tsv").read_bytes())
    fails("STS13: every pair also occurs in STSB-dev, so none is left", TASKS["STS13"], folder)


def test_what_is_absent_or_broken_in_a_folder(folder):
    senteval, absent = folder / "senteval", folder / "absent"
    said = f"{absent}: no such data folder; name one that exists with --data or CTX_EMBED_DATA"
    fails(said, TASKS["MR"], absent)
    fails(f"CR: {senteval / 'CR.tsv'} is missing; {REMEDY}", TASKS["CR"], folder)
    (senteval / "MR.tsv").write_text("0\tbad\n2\tworse\n")
    fails(f"MR: labels must be 0 (negative), 1 (positive); got '2' in {folder}", TASKS["MR"], folder)


@pytest.fixture
def hub_task(tmp_path, monkeypatch) -> Task:
    """Return a task whose hub source is a folder, which `datasets` reads by the same call."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = tmp_path / "hub"
    source.mkdir()
    (source / "train.jsonl").write_text('{"label": 0, "sentence": "bad"}\n{"label": 1, "sentence": "good\\tbetter"}\n')
    (source / "test.jsonl").write_text('{"label": 1, "sentence": "fine"}\n')
    hub = HubSource(str(source), ("label", "sentence"), {"HUB": ("train", "test")})
    return Task("probe", "HUB", (), 3, hub, labels={"0": "negative", "1": "positive"})


def test_the_splits_parts_and_labels_of_a_hub_set(hub_task):
    data = DataReader(None).read(hub_task)
    assert data.subsets == {"HUB": [("0", "bad"), ("1", "good\tbetter"), ("1", "fine")]}
    name = hub_task.hub.repository
    parts = {"train": ("train",), "test": ("test",)}
    hub = HubSource(name, ("label", "sentence"), parts, labels={"0": "NO"})
    data = DataReader(None).read(Task("probe", "HUB", (), 3, hub))
    assert data.subsets == {"train": [("NO", "bad"), ("1", "good\tbetter")], "test": [("1", "fine")]}
    for columns, split in (("label", "text"), "train"), (("label", "sentence"), "dev"):
        lacks = f"it has no split {split!r} with the columns {', '.join(columns)}"
        task = Task("probe", "HUB", (), 3, HubSource(name, columns, {"HUB": (split,)}))
        fails(f"HUB: {name} could not be loaded from the hub ({lacks}); {REMEDY}", task)


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


def test_sentevals_own_files_serve_as_well(tmp_path):
    (tmp_path / "MR").mkdir()
    (tmp_path / "MR" / "rt-polarity.pos").write_bytes(b"so caf\xe9\n")
    (tmp_path / "MR" / "rt-polarity.neg").write_text("so dull\n")
    assert DataReader(tmp_path).read(TASKS["MR"]).subsets == {"MR": [("1", "so café"), ("0", "so dull")]}


def test_other_rows_than_those_measured_are_noticed(folder):
    layout = (File("MR", "senteval/MR.tsv", TASKS["MR"].layouts[0][0].read),)
    known = DataReader(folder).read(Task("probe", "MR", (layout,))).sha256
    assert not DataReader(folder).read(Task("probe", "MR", (layout,), sha256=known)).is_altered
    assert DataReader(folder).read(Task("probe", "MR", (layout,), sha256="0" * 64)).is_altered
    # Of another layout nothing is known.
    absent = (File("MR", "absent.tsv", layout[0].read),)
    assert not DataReader(folder).read(Task("probe", "MR", (absent, layout), sha256="0" * 64)).is_altered


def test_a_collection_whose_queries_are_of_one_id_or_absent(folder):
    queries = folder / "retrieval" / "adi" / "queries.jsonl"
    queries.write_text(queries.read_text().replace('"_id": "3"', '"_id": "2"'))
    fails("adi: query ids must differ, got '2' twice", TASKS["adi"], folder)
    queries.write_text(queries.read_text().splitlines()[0] + "\n")
    (remark,) = DataReader(folder).read(TASKS["adi"]).remarks
    assert re.fullmatch(r"unknown queries in \d of 4 \(such as '2'\) judgements: these are left out", remark)


def test_what_a_reader_of_the_scores_must_know_of_a_collection(tmp_path):
    corpus = {"1": "Wings of birds", "2": "How do birds fly?", "3": "Ships sail.", "4": "Why do ships sail?"}
    queries = {"2": "how do birds fly", "1": "another text of this number", "4": "Why do ships sail?"}
    for name, texts in (("corpus", corpus), ("queries", queries)):
        lines = (json.dumps({"_id": id, "text": text}) + "\n" for id, text in texts.items())
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    judgements = tmp_path / "qrels" / "test.tsv"
    judgements.parent.mkdir()
    judgements.write_text("2\t1\t1\n2\t1\t2\n2\tgone\t1\n9\t1\t1\n1\t3\t0\n1\t3\t0\n4\t4\t1\n")
    (task,) = find_tasks([str(tmp_path)])
    data = DataReader(None).read(task)
    # The query 1 has only the number of a document, and 4 is judged an answer to itself.
    assert data.own == {"2"}
    assert data.remarks == (
        "unknown queries in 1 of 5 (such as '9') judgements: these are left out",
        "unknown documents in 1 of 5 (such as 'gone') judgements: these count as not found, as in trec_eval",
        "contradicting judgements in 1 of 5 (such as ('2', '1')) cases: the last counts",
        "queries that are documents too in 1 of 3 (such as '2') cases: each is left out of its own results, as in BEIR",
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
    assert DataReader(None).read(TASKS["scifact"]).subsets == {
        "corpus": [("1", "On wings They fly.")],
        "queries": [("7", "What flies?")],
        "qrels": [("7", "1", "1")],
    }
    row = ("2", "What is it ?")
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
