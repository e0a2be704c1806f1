"""The similarity tasks: pairs of texts that people have scored."""

from __future__ import annotations

from ctx_embed.eval.tasks.formats import scored_pairs, sick_relatedness, sts_benchmark, sts_input
from ctx_embed.eval.tasks.task import PARQUET_COPY, File, HubSource, Layout, SimilarityTask

STS_COLUMNS = ("score", "sentence1", "sentence2")
# Datasets of 2012 that SentEval stores under another name.
SENTEVAL_NAMES = {"STS12_OnWN": "surprise.OnWN", "STS12_SMTnews": "surprise.SMTnews"}


def _sts(year: int, rows: int, *subsets: str, without: str | None = "STSB-dev") -> SimilarityTask:
    # STS-B was sampled from these sets, and its development part is used to choose between models.
    names = {f"STS{year}_{subset}": subset for subset in subsets}
    ours: Layout = tuple(File(name, f"senteval/{name}.tsv", scored_pairs) for name in names)
    senteval: Layout = tuple(
        File(name, f"STS/STS{year}-en-test/STS.input.{SENTEVAL_NAMES.get(name, subset)}.txt", sts_input)
        for name, subset in names.items()
    )
    return SimilarityTask(f"STS{year}", (ours, senteval), rows, without=without)


def _benchmark(name: str, part: str, split: str, rows: int) -> SimilarityTask:
    subset = f"STSB_{part}"
    return SimilarityTask(
        name,
        (
            (File(subset, f"senteval/STSB_{part}.tsv", scored_pairs),),
            (File(subset, f"STS/STSBenchmark/sts-{part}.csv", sts_benchmark),),
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
            (File("SICKR_test", "senteval/SICKR_test.tsv", scored_pairs),),
            (File("SICKR_test", "SICK/SICK_test_annotated.txt", sick_relatedness),),
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
