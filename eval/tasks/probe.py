"""The probe tasks: their files, the meaning of their labels, and published scores."""

from __future__ import annotations

from ctx_embed.eval.tasks.formats import (
    labelled,
    labelled_pairs,
    labelled_reviews,
    lines_of,
    mrpc,
    sent_conv,
    sick_entailment,
    sst_binary,
    trec,
)
from ctx_embed.eval.tasks.task import PARQUET_COPY, File, HubSource, Layout, ProbeTask, Reader

CONTEXTUALIZER, USE, INFERSENT, MINILM = "Contextualizer (paper)", "USE-T", "InferSent", "all-MiniLM-L6-v2"
SENTIMENT = {"0": "negative", "1": "positive"}
ENTAILMENT = {"CONTRADICTION": "contradiction", "NEUTRAL": "neutral", "ENTAILMENT": "entailment"}


def _parts(pattern: str, read: Reader, **names: str) -> Layout:
    """Return a file for each part: ``pattern`` filled with the part's name in that layout."""
    return tuple(File(part, pattern.format(name), read) for part, name in names.items())


def _two_files(name: str, positive: str, negative: str) -> Layout:
    """Return SentEval's layout: one file for each class, one text a line."""
    return (File(name, positive, lines_of("1")), File(name, negative, lines_of("0")))


def _whole(
    name: str,
    rows: int,
    senteval: tuple[str, str],
    sent_conv_file: str,
    hub: HubSource,
    scores: tuple[float, float, float, float],
    labels: dict[str, str],
) -> ProbeTask:
    """Return a task that is cross-validated."""
    layouts = (
        (File(name, f"senteval/{name}.tsv", labelled),),
        _two_files(name, *senteval),
        (File(name, sent_conv_file, sent_conv),),
    )
    published = dict(zip((CONTEXTUALIZER, USE, INFERSENT, MINILM), scores, strict=True))
    return ProbeTask(name, layouts, rows, hub, published, labels=labels)


PROBE_TASKS = (
    _whole(
        "MR",
        10662,
        ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
        "rt-polarity.all",
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
        "custrev.all",
        HubSource("mattymchen/cr", ("label", "text"), {"CR": ("test",)}),
        (79.0, 87.4, 86.3, 82.9),
        SENTIMENT,
    ),
    _whole(
        "SUBJ",
        10000,
        ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
        "subj.all",
        HubSource("SetFit/subj", ("label", "text"), {"SUBJ": ("train", "test")}),
        (91.2, 93.9, 92.4, 92.3),
        {"0": "subjective", "1": "objective"},
    ),
    _whole(
        "MPQA",
        10606,
        ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
        "mpqa.all",
        HubSource("jxm/mpqa", ("label", "sentence"), {"MPQA": ("train", "dev", "test")}),
        (85.3, 87.0, 90.2, 87.4),
        SENTIMENT,
    ),
    ProbeTask(
        "SST2",
        (
            _parts("senteval/SST2_{}.tsv", labelled, train="train", dev="dev", test="test"),
            _parts("SST/binary/sentiment-{}", sst_binary, train="train", dev="dev", test="test"),
            _parts("stsa.binary.{}", sent_conv, train="train", dev="dev", test="test"),
        ),
        70042,
        HubSource("SetFit/sst2", ("label", "text"), {"train": ("train",), "dev": ("validation",), "test": ("test",)}),
        {USE: 85.4, INFERSENT: 84.6},
        labels=SENTIMENT,
    ),
    ProbeTask(
        "SST5",
        (
            _parts("senteval/SST5_{}.tsv", labelled, train="train", dev="dev", test="test"),
            _parts("SST/fine/sentiment-{}", sent_conv, train="train", dev="dev", test="test"),
            _parts("stsa.fine.{}", sent_conv, train="train", dev="dev", test="test"),
        ),
        11855,
        HubSource("SetFit/sst5", ("label", "text"), {"train": ("train",), "dev": ("validation",), "test": ("test",)}),
        labels={"0": "very negative", "1": "negative", "2": "neutral", "3": "positive", "4": "very positive"},
    ),
    ProbeTask(
        # Copies of it name the six classes differently, so any label is allowed.
        "TREC",
        (
            _parts("senteval/TREC_{}.tsv", labelled, train="train", test="test"),
            _parts("TREC/{}.label", trec, train="train_5500", test="TREC_10"),
            _parts("TREC.{}.all", sent_conv, train="train", test="test"),
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
            _parts("senteval/MRPC_{}.tsv", labelled_pairs, train="train", test="test"),
            _parts("MRPC/msr_paraphrase_{}.txt", mrpc, train="train", test="test"),
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
            _parts("senteval/SICKE_{}.tsv", labelled_pairs, train="train", dev="dev", test="test"),
            _parts("SICK/SICK_{}.txt", sick_entailment, train="train", dev="trial", test="test_annotated"),
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
    # Only part of the training set; the test set is complete.
    ProbeTask(
        "AGNEWS",
        (_parts("longdocs/AGnews_{}.tsv.gz", labelled, train="train_part", test="test_desc"),),
        17601,
        labels={"1": "world", "2": "sports", "3": "business", "4": "science and technology"},
    ),
    ProbeTask("YELP", ((File("YELP", "sentiment/yelp_sentences.tsv.gz", labelled),),), 150000, labels=SENTIMENT),
    ProbeTask("AMAZON", ((File("AMAZON", "sentiment/amazon_polarity_10k.tsv.gz", labelled),),), 8569, labels=SENTIMENT),
    ProbeTask("R8", (_parts("longdocs/R8_{}.tsv.gz", labelled, train="train", test="test"),), 7674),
    ProbeTask(
        "IMDB",
        (_parts("longdocs/IMDB_{}.tsv.gz", labelled_reviews, train="train", test="test"),),
        50000,
        HubSource("stanfordnlp/imdb", ("label", "text"), {"train": ("train",), "test": ("test",)}),
        labels=SENTIMENT,
    ),
)
