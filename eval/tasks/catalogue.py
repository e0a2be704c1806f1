"""The tasks by name: their files, the meaning of their labels, published scores; users may name their own files too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.eval.tasks import formats
from ctx_embed.eval.tasks.task import (
    PARQUET_COPY,
    File,
    HubSource,
    Layout,
    ProbeTask,
    Reader,
    RetrievalTask,
    SimilarityTask,
    Task,
)
from ctx_embed.texts import well_formed

CONTEXTUALIZER, USE, INFERSENT, MINILM = "Contextualizer (paper)", "USE-T", "InferSent", "all-MiniLM-L6-v2"
BM25, BEIR_BM25 = "BM25", "BM25 (BEIR)"
# The published scores of models that a user might choose instead, with their source and date.
MTEB_PUBLISHED = json.loads(Path(__file__).with_name("mteb.json").read_text(encoding="utf-8"))
# The sources of the published scores, in the order of the tables.
PUBLISHED_SOURCES = {
    CONTEXTUALIZER: "Maupome and Meurs 2022, Information 13(6):290, trained end to end on each task",
    USE: "Cer et al. 2018, Universal Sentence Encoder, arXiv:1803.11175, transfer without word embeddings",
    INFERSENT: "Conneau et al. 2017, arXiv:1705.02364, BiLSTM-Max trained on AllNLI, SentEval's protocol",
    MINILM: "frozen, measured by this project with the protocol standard, seed 0",
    BM25: "SQLite's full-text index, Porter stemming, any word of the query; measured by this project",
    BEIR_BM25: "Thakur et al. 2021, arXiv:2104.08663, multi-field Lucene",
    **{
        f"{model} (published)": f"{MTEB_PUBLISHED['source']}, {MTEB_PUBLISHED['date']}"
        for model in MTEB_PUBLISHED["scores"]
    },
}

# Classification ------------------------------------------------------------------------------------------------

SENTIMENT = {"0": "negative", "1": "positive"}
ENTAILMENT = {"CONTRADICTION": "contradiction", "NEUTRAL": "neutral", "ENTAILMENT": "entailment"}


def _parts(pattern: str, read: Reader, **names: str) -> Layout:
    """Return a file for each part: ``pattern`` filled with the part's name in that layout."""
    return tuple(File(part, pattern.format(name), read) for part, name in names.items())


def _whole(
    name: str,
    rows: int,
    senteval: tuple[str, str],
    hub: HubSource,
    scores: tuple[float, float, float, float],
    labels: dict[str, str],
) -> ProbeTask:
    """Return a task that is cross-validated."""
    positive, negative = senteval
    layouts = (
        (File(name, f"senteval/{name}.tsv", formats.labelled),),
        # SentEval has a file for each class, one text a line.
        (File(name, positive, formats.lines_of("1")), File(name, negative, formats.lines_of("0"))),
    )
    published = dict(zip((CONTEXTUALIZER, USE, INFERSENT, MINILM), scores, strict=True))
    return ProbeTask(name, layouts, rows, hub, published, labels=labels)


PROBE_TASKS = (
    _whole(
        "MR",
        10662,
        ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
        HubSource(
            "cornell-movie-review-data/rotten_tomatoes", ("label", "text"), {"MR": ("train", "validation", "test")}
        ),
        (76.6, 81.4, 81.1, 77.0),
        SENTIMENT,
    ),
    _whole(
        "CR",
        3775,
        ("CR/custrev.pos", "CR/custrev.neg"),
        HubSource("mattymchen/cr", ("label", "text"), {"CR": ("test",)}),
        (79.0, 87.4, 86.3, 82.9),
        SENTIMENT,
    ),
    _whole(
        "SUBJ",
        10000,
        ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
        HubSource("SetFit/subj", ("label", "text"), {"SUBJ": ("train", "test")}),
        (91.2, 93.9, 92.4, 92.3),
        {"0": "subjective", "1": "objective"},
    ),
    _whole(
        "MPQA",
        10606,
        ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
        HubSource("jxm/mpqa", ("label", "sentence"), {"MPQA": ("train", "dev", "test")}),
        (85.3, 87.0, 90.2, 87.4),
        SENTIMENT,
    ),
    ProbeTask(
        "SST2",
        (
            _parts("senteval/SST2_{}.tsv", formats.labelled, train="train", dev="dev", test="test"),
            _parts("SST/binary/sentiment-{}", formats.sst_binary, train="train", dev="dev", test="test"),
        ),
        70042,
        HubSource("SetFit/sst2", ("label", "text"), {"train": ("train",), "dev": ("validation",), "test": ("test",)}),
        {USE: 85.4, INFERSENT: 84.6},
        labels=SENTIMENT,
    ),
    ProbeTask(
        "SST5",
        (
            _parts("senteval/SST5_{}.tsv", formats.labelled, train="train", dev="dev", test="test"),
            _parts("SST/fine/sentiment-{}", formats.sst_fine, train="train", dev="dev", test="test"),
        ),
        11855,
        HubSource("SetFit/sst5", ("label", "text"), {"train": ("train",), "dev": ("validation",), "test": ("test",)}),
        labels={"0": "very negative", "1": "negative", "2": "neutral", "3": "positive", "4": "very positive"},
    ),
    ProbeTask(
        # Copies of the dataset name the six classes differently, so any label is allowed.
        "TREC",
        (
            _parts("senteval/TREC_{}.tsv", formats.labelled, train="train", test="test"),
            _parts("TREC/{}.label", formats.trec, train="train_5500", test="TREC_10"),
        ),
        5952,
        HubSource(
            "CogComp/trec",
            ("coarse_label", "text"),
            {"train": ("train",), "test": ("test",)},
            revision=PARQUET_COPY,
        ),
        {USE: 92.5, INFERSENT: 88.2},
    ),
    ProbeTask(
        "MRPC",
        (
            _parts("senteval/MRPC_{}.tsv", formats.labelled_pairs, train="train", test="test"),
            _parts("MRPC/msr_paraphrase_{}.txt", formats.mrpc, train="train", test="test"),
        ),
        5801,
        HubSource(
            "nyu-mll/glue",
            ("label", "sentence1", "sentence2"),
            {"train": ("train", "validation"), "test": ("test",)},
            "mrpc",
        ),
        {INFERSENT: 76.2},
        labels={"0": "different", "1": "paraphrase"},
    ),
    ProbeTask(
        "SICK-E",
        (
            _parts("senteval/SICKE_{}.tsv", formats.labelled_pairs, train="train", dev="dev", test="test"),
            _parts("SICK/SICK_{}.txt", formats.sick_entailment, train="train", dev="trial", test="test_annotated"),
        ),
        9927,
        HubSource(
            "RobZamp/sick",
            ("label", "sentence_A", "sentence_B"),
            {"train": ("train",), "dev": ("validation",), "test": ("test",)},
            revision=PARQUET_COPY,
            labels={"0": "ENTAILMENT", "1": "NEUTRAL", "2": "CONTRADICTION"},
        ),
        {INFERSENT: 86.3},
        labels=ENTAILMENT,
    ),
    # The copy has only part of the training set; its test set is complete.
    ProbeTask(
        "AGNEWS",
        (_parts("longdocs/AGnews_{}.tsv.gz", formats.labelled, train="train_part", test="test_desc"),),
        17601,
        labels={"1": "world", "2": "sports", "3": "business", "4": "science and technology"},
    ),
    ProbeTask(
        "YELP", ((File("YELP", "sentiment/yelp_sentences.tsv.gz", formats.labelled),),), 150000, labels=SENTIMENT
    ),
    ProbeTask(
        "AMAZON", ((File("AMAZON", "sentiment/amazon_polarity_10k.tsv.gz", formats.labelled),),), 8569, labels=SENTIMENT
    ),
    ProbeTask("R8", (_parts("longdocs/R8_{}.tsv.gz", formats.labelled, train="train", test="test"),), 7674),
    ProbeTask(
        "IMDB",
        (_parts("longdocs/IMDB_{}.tsv.gz", formats.labelled_reviews, train="train", test="test"),),
        50000,
        HubSource("stanfordnlp/imdb", ("label", "text"), {"train": ("train",), "test": ("test",)}),
        labels=SENTIMENT,
    ),
)

# Similarity ----------------------------------------------------------------------------------------------------

STS_COLUMNS = ("score", "sentence1", "sentence2")
# Datasets of 2012 that have another name in SentEval.
SENTEVAL_NAMES = {"STS12_OnWN": "surprise.OnWN", "STS12_SMTnews": "surprise.SMTnews"}


def _sts(year: int, rows: int, *subsets: str, without: str | None = "STSB-dev") -> SimilarityTask:
    # STS-B was sampled from these sets, and its development part serves to choose between models: leave its pairs out.
    names = {f"STS{year}_{subset}": subset for subset in subsets}
    ours: Layout = tuple(File(name, f"senteval/{name}.tsv", formats.scored_pairs) for name in names)
    senteval: Layout = tuple(
        File(name, f"STS/STS{year}-en-test/STS.input.{SENTEVAL_NAMES.get(name, subset)}.txt", formats.sts_input)
        for name, subset in names.items()
    )
    return SimilarityTask(f"STS{year}", (ours, senteval), rows, without=without)


def _benchmark(name: str, part: str, split: str, rows: int) -> SimilarityTask:
    subset = f"STSB_{part}"
    return SimilarityTask(
        name,
        (
            (File(subset, f"senteval/STSB_{part}.tsv", formats.scored_pairs),),
            (File(subset, f"STS/STSBenchmark/sts-{part}.csv", formats.sts_benchmark),),
        ),
        rows,
        HubSource("mteb/stsbenchmark-sts", STS_COLUMNS, {subset: (split,)}),
    )


SIMILARITY_TASKS = (
    _benchmark("STSB", "test", "test", 1379),
    _benchmark("STSB-dev", "dev", "validation", 1500),
    _sts(12, 3108, "MSRpar", "MSRvid", "OnWN", "SMTeuroparl", "SMTnews"),
    _sts(13, 1500, "FNWN", "OnWN", "headlines"),
    _sts(14, 3750, "OnWN", "deft-forum", "deft-news", "headlines", "images", "tweet-news"),
    _sts(15, 3000, "answers-forums", "answers-students", "belief", "headlines", "images"),
    _sts(16, 1186, "answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
    SimilarityTask(
        "SICK-R",
        (
            (File("SICKR_test", "senteval/SICKR_test.tsv", formats.scored_pairs),),
            (File("SICKR_test", "SICK/SICK_test_annotated.txt", formats.sick_relatedness),),
        ),
        4927,
        HubSource(
            "RobZamp/sick",
            ("relatedness_score", "sentence_A", "sentence_B"),
            {"SICKR_test": ("test",)},
            revision=PARQUET_COPY,
        ),
    ),
)

# Retrieval -----------------------------------------------------------------------------------------------------


def beir_layout(folder: str) -> Layout:
    """Return the files of a collection: documents, queries, and the judgements of the test part."""
    return (
        File("corpus", f"{folder}/corpus.jsonl", formats.beir_documents),
        File("queries", f"{folder}/queries.jsonl", formats.beir_documents),
        File("qrels", f"{folder}/qrels/test.tsv", formats.beir_judgements),
    )


def _collection(name: str, documents: int, queries: int, judgements: int, bm25: float) -> RetrievalTask:
    rows = documents + queries + judgements
    return RetrievalTask(name, (beir_layout(f"retrieval/{name}"),), rows, published={BM25: bm25})


def _beir(name: str, bm25: float) -> RetrievalTask:
    """Return a dataset of BEIR, which the hub splits over two repositories."""
    repository = f"BeIR/{name}"
    judgements = HubSource(f"{repository}-qrels", ("query-id", "corpus-id", "score"), {"qrels": ("test",)})
    queries = HubSource(repository, ("_id", "text"), {"queries": ("queries",)}, "queries")
    hub = HubSource(
        repository,
        ("_id", "title", "text"),
        {"corpus": ("corpus",)},
        "corpus",
        is_document=True,
        others=(queries, judgements),
    )
    return RetrievalTask(name, (beir_layout(f"retrieval/{name}"),), hub=hub, published={BEIR_BM25: bm25})


RETRIEVAL_TASKS = (
    _collection("cranfield", 1400, 225, 1612, 35.4),
    _collection("cisi", 1460, 76, 3114, 31.8),
    _collection("cacm", 3204, 52, 796, 42.6),
    _collection("npl", 11426, 93, 2083, 43.2),
    _collection("adi", 82, 35, 170, 48.6),
    _beir("scifact", 66.5),
    _beir("nfcorpus", 32.5),
    _beir("fiqa", 23.6),
    _beir("scidocs", 15.8),
)

# MTEB ----------------------------------------------------------------------------------------------------------


def _few_shot(name: str, rows: int, layout: Layout, per_label: int = 8) -> ProbeTask:
    return ProbeTask(name, (layout,), rows, published=_mteb(name), per_label=per_label)


def _pooled(name: str, whole: str) -> SimilarityTask:
    """Return the task ``whole`` as MTEB scores it: one correlation over the pairs of all subsets."""
    task = next(task for task in SIMILARITY_TASKS if task.name == whole)
    layouts = tuple(tuple(replace(file, subset="test") for file in layout) for layout in task.layouts)
    return SimilarityTask(name, layouts, task.rows, published=_mteb(name))


def _mteb(name: str) -> dict[str, float]:
    models = MTEB_PUBLISHED["scores"].items()
    return {f"{model} (published)": scores[name] for model, scores in models if name in scores}


MTEB_TASKS = (
    _few_shot("MTEB-Banking77", 13083, _parts("mteb/banking77_{}.tsv", formats.labelled, train="train", test="test")),
    _few_shot(
        "MTEB-AmazonCounterfactual",
        4688,
        _parts("mteb/amazon_counterfactual_en_{}.tsv", formats.labelled, train="train", test="test"),
        per_label=32,
    ),
    _few_shot(
        "MTEB-IMDB", 50000, _parts("longdocs/IMDB_{}.tsv.gz", formats.labelled_reviews, train="train", test="test")
    ),
    *(_pooled(f"MTEB-{name}", name) for name in ("STS12", "STS13", "STS14", "STS15", "STSB")),
)
# Tasks that ``--suite`` runs together.
SUITES = {"mteb": tuple(task.name for task in MTEB_TASKS)}

# All -----------------------------------------------------------------------------------------------------------

# The hash of the rows behind our published scores, see :attr:`ctx_embed.eval.tasks.data.TaskData.sha256`.
SHA256 = {
    "MR": "42351736f55d212e37e6dbd1671b2d0932b3c79fb07cbdd4b8f250d3f978c918",
    "CR": "6fe88707de7c66515c84eb94aae8b33f89fe4eb751a41630c8d9eaef9e82d20b",
    "SUBJ": "f031e3423d5d75bba4517c1a35212bc2c6ff45bb7fd9d029ba70b887230bf762",
    "MPQA": "369994dbf4900e4997d3b782518581bc656b5f6e079ba6221ba8438ef2003f7a",
    "AGNEWS": "7b88385e8544befdb31565e1091aed42701183a40f23694a0ea986f9b55464b4",
    "R8": "66af37e3d0d2d0b89cd9aba6f7b1938728117ab8335d39433174c821dae0293b",
    "IMDB": "de8085d5e14c8bf698016075039c9353c277d0f634b4d4ab3b364b101cadc6e5",
    "STSB": "ce0ef42d8939c6ab7e12afd8e2a696fa1cf5ba756862c39a83ec9e5f7e8ca2a2",
    "STSB-dev": "b9d61ba533cd9b717b84b8abd09d639487301e5eae0449c1bee5fc569de1e646",
    "STS12": "4b23734a3f73f3b8a5dd48b85c8ea7d24fb2681e4d8ef9cf194aeefb5d7b852e",
    "STS13": "1756be7c372fb6c6eb432cf4cd2ffa5a40cef8d4b996b704b31aab30fb21098f",
    "STS14": "181326b6058dc208d580fcdfaa882de47f8696dab61be6b7eddd23edb419ff4a",
    "STS15": "fe1ff52299c4792ff8570baa56cbb0a08558f518021c490fa1b41d4b58ad54d5",
    "cranfield": "1ce155651342fd60eda59232657ec80699d6e1e094f5e436612eece8eff70f1e",
    "cisi": "79443fd06b4a8efbf2d791a05dff1328bc7dd1b90f30c30fb2dfae87ee348113",
    "cacm": "51ab9c96efc32f9e781b7d16499aa418af91f6216516619b1ce90598021dedb1",
    "npl": "c2a1a8471c89cf7d641e0d7d0f1385524708009bf82f57c29ae1240d035663d7",
    "adi": "b658e844054bcd6c203d6718517361e9ef5f1b355ffe52acc7c9c4923b8f05fa",
}

TASKS: Mapping[str, Task] = {
    task.name: replace(task, sha256=SHA256.get(task.name, ""))
    for task in (*PROBE_TASKS, *SIMILARITY_TASKS, *RETRIEVAL_TASKS, *MTEB_TASKS)
}
DEFAULT_TASKS = ("MR", "CR", "SUBJ", "MPQA")


def find_tasks(names: Sequence[str], text_field: str | None = None, label_field: str | None = None) -> list[Task]:
    """Return the tasks with these names or paths, each once, in order; without names the four default tasks.

    A path names a labelled file (lines of ``label<TAB>text``, or a table with the named fields, see
    :func:`ctx_embed.rows.reading.read_labelled_rows`), or a folder in BEIR layout.

    Raises:
        InputError: a name is neither a task nor an existing path.
    """
    found: list[Task] = []
    for name in dict.fromkeys(names or DEFAULT_TASKS):
        path, shown = Path(name), well_formed(name)
        # os.path returns False where pathlib would raise, for example for a name that is too long.
        if name in TASKS:
            found.append(TASKS[name])
        elif os.path.isfile(name):
            read = partial(formats.labelled, text_field=text_field, label_field=label_field)
            found.append(ProbeTask(shown, ((File(shown, os.path.abspath(name), read),),)))
        elif os.path.isfile(path / "corpus.jsonl"):
            found.append(RetrievalTask(shown, (beir_layout(os.path.abspath(name)),)))
        elif os.path.isdir(name):
            raise InputError(
                f"{name}: the folder has no corpus.jsonl; a task must be a name, a labelled file or a folder in BEIR "
                "layout"
            )
        elif path.name != name or path.suffix:
            raise InputError(f"{name}: no such file")
        else:
            raise InputError(f"{unknown_name('task', name, TASKS)}, or the path of a labelled file")
    return found
