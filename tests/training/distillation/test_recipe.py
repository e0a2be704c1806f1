import hashlib
import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ctx_embed import load
from ctx_embed.fingerprint import fingerprint
from ctx_embed.training.distillation import job
from ctx_embed.training.distillation.teacher import TeacherCache
from ctx_embed.training.labelled_texts import hashes_of
from ctx_embed.training.options import DistillationOptions, Source, read_recipe
from tests.helpers.errors import error

NAMES = {"corpus", "epochs", "teacher", "learning_rate", "held_out", "sources", "encoder_options"}
SMALL = {"dimension": 8, "steps": 1, "rank": 2, "epochs": 2, "batch_size": 16, "held_out": 16, "vocabulary_size": 120}


# Recipes


@pytest.fixture
def toml(tmp_path):
    def write(content: str | bytes):
        path = tmp_path / "recipe.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_a_recipe(toml):
    path = toml("""
teacher = "minilm"
learning_rate = 5e-3
[[sources]]
files = ["b.txt", "c/*.gz"]
texts = 100
fair = true
""")
    sources = [{"files": ["b.txt", "c/*.gz"], "texts": 100, "fair": True}]
    assert read_recipe(path, NAMES) == {"teacher": "minilm", "learning_rate": 0.005, "sources": sources}
    assert read_recipe(toml(""), NAMES) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("heldout = 16", "unknown option of {} 'heldout': did you mean 'held_out'? known are corpus, "),
        (b"\xff", "{}: not TOML ('utf-8' codec can't decode byte 0xff"),
        ('corpus = "a.txt"', "{}: corpus must be a list of strings, got 'a.txt'"),
        ("epochs = true", "{}: epochs must be a string or a number, got True"),
        ("encoder_options = 3", "{}: encoder_options must be a table [encoder_options], got 3"),
        ("sources = [3]", "{}: sources must be tables [[sources]], got [3]"),
        ("[[sources]]\ntexts = 3", "{}: each source must have files; add files = [...]"),
        ('[[sources]]\nfiles = "a"', "{}: files of a source must be a list of strings, got 'a'"),
        (
            '[[sources]]\nfiles = ["a"]\ntexts = 1.5',
            "{}: texts of a source must be a whole number, at least 1, got 1.5",
        ),
        ('[[sources]]\nfiles = ["a"]\ntexs = 2', "unknown option of a source in {} 'texs': did you mean 'texts'?"),
    ],
)
def test_recipes_that_are_wrong(toml, content, message):
    path = toml(content)
    assert error(read_recipe, path, NAMES).startswith(message.format(path))
    path.unlink()
    assert error(read_recipe, path, NAMES) == f"{path}: cannot be read (No such file or directory)"


# From files to a model


def written(path, sentences, numbers):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{sentence} {number}\n" for number in numbers for sentence in sentences))
    return path


@pytest.fixture
def corpus(tmp_path, sentences):
    return [written(tmp_path / "corpus.txt", sentences, range(10))]


@pytest.fixture
def distill(corpus, tmp_path, tiny_model_path):
    def run(output="model", **options):
        options = {"teacher": str(tiny_model_path), **SMALL, **options}
        sources = options.pop("sources", None) or [Source(options.pop("corpus", corpus))]
        return job.distill(sources, tmp_path / output, progress=False, **options)

    return run


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_model_and_its_record(distill, corpus, tmp_path, tiny_model, sentences):
    summary = distill(steps=2, seed=7, store="float16")
    assert names(tmp_path) == ["corpus.txt", "model", "model.teacher"]
    assert {tensor.dtype for tensor in weights(tmp_path / "model").values()} == {torch.float16}
    model = load(tmp_path / "model")
    assert model.dtype == torch.float32
    assert np.linalg.norm(model.encode(sentences), axis=1) == pytest.approx(np.ones(8), abs=1e-6)
    record = json.loads((tmp_path / "model" / "training.json").read_text())
    assert record["encoder"] == "contextualizer"
    defaults = {"positions": "none", "scale": "mean", "initial_context": "ones"}
    assert record["architecture"] == {"dimension": 8, "spare_dimensions": 0, "steps": 2, "rank": 2, **defaults}
    assert record["options"]["seed"] == 7
    assert record["teacher"]["fingerprint"] == fingerprint(tiny_model)
    hashes = {"corpus.txt": hashlib.sha256(corpus[0].read_bytes()).hexdigest()}
    (source,) = record["sources"]
    assert source == {**asdict(Source(corpus)), "files": hashes}
    assert (record["exclude"], record["excluded_texts"]) == ({}, 0)
    first, *_, last = (epoch["held_out_distance"] for epoch in record["history"])
    counts = {"texts": 80, "trained_texts": 64, "held_out_texts": 16, "kept_epoch": 2}
    assert summary == {**counts, "held_out_distance": last}
    assert last < first
    assert record["versions"].keys() == {"python", "ctx-embed", "sentence-transformers", "tokenizers", "torch"}


def test_a_tenth_is_held_out_unless_more_is_asked_for(distill, tmp_path):
    summary = distill(held_out=None)
    assert (summary["trained_texts"], summary["held_out_texts"]) == (72, 8)
    assert json.loads((tmp_path / "model" / "training.json").read_text())["options"]["held_out"] == 8
    assert DistillationOptions().for_texts(5_000).held_out == 500
    assert DistillationOptions().for_texts(100_000).held_out == 4096
    assert DistillationOptions(held_out=20).for_texts(5_000).held_out == 20


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_sources_phrases_labels_and_pairs_in_an_int8_model(distill, tmp_path, sentences):
    # A phrase must occur twenty times.
    corpus = [written(tmp_path / "corpus.txt", sentences, range(20))]
    labelled, pairs = tmp_path / "labelled.tsv", tmp_path / "pairs.tsv"
    labelled.write_text("".join(f"{number % 2}\t{text}\n" for number, text in enumerate(sentences * 4)))
    pairs.write_text("".join(f"{number}\t{text}\t{sentences[0]}\n" for number, text in enumerate(sentences)))
    summary = distill(
        sources=[Source([str(corpus[0])]), Source(corpus, texts=10, passage_lines=3), Source(corpus, span_words=4)],
        labelled=[str(labelled)],
        exclude=[str(pairs)],
        validation=str(pairs),
        phrases=10,
        spare_dimensions=2,
        store="int8",
    )
    # 160 lines make passages of 2, 3, 2, .. lines: 64 of them, all of one block.
    assert summary["texts"] == 160 + 64 + 160
    folder = tmp_path / "model"
    record = json.loads((folder / "training.json").read_text())
    assert record["phrases"] == 10
    assert {"held_out_label_accuracy", "pairs_spearman"} < record["history"][-1].keys()
    # A short run shows its course too.
    assert len([entry["loss"] for entry in record["losses"]]) >= 20
    stored = weights(folder)
    assert stored["embedding.weight"].dtype == torch.int8
    assert (load(folder)[0].labelled_texts == hashes_of(sentences)).all()
    model = load(folder)
    assert model[0].entries == len(stored["embedding.weight"]) == model[0].backend_tokenizer.get_vocab_size() + 10
    # What was trained is what was saved: the phrases' rows hold their parts.
    assert model[0].embedding.weight[-10:].abs().sum(1).min() > 0.1
    assert fingerprint(model) == fingerprint(load(folder))
    model.save_pretrained(str(tmp_path / "again"))
    assert all(torch.equal(tensor, stored[name]) for name, tensor in weights(tmp_path / "again").items())


def test_a_second_stage_with_pairs_and_a_second_teacher(distill, corpus, tmp_path, sentences, tiny_model_path):
    distill("first", phrases=3, spare_dimensions=2)
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"query": f"{text} {n}", "passage": f"{n} {text}"} for n in range(6) for text in sentences]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [Source(corpus, fair=True, second_texts=40), Source([pairs], fair=True)]
    stage = {"sources": sources, "spare_dimensions": 2, "start": str(tmp_path / "first"), "epochs": 3}
    stage |= {"second_teacher": str(tmp_path / "first"), "pair_weight": 0.5, "pair_batch": 8}
    summary = distill("second", **stage)
    assert summary["texts"] == 80 + 2 * 48
    record = json.loads((tmp_path / "second" / "training.json").read_text())
    assert record["from"]["fingerprint"] == record["second_teacher"]["fingerprint"]
    assert record["from"]["fingerprint"] == fingerprint(load(tmp_path / "first"))
    card = (tmp_path / "second" / "README.md").read_text()
    assert all(f"| {name} | {tmp_path / 'first'}" in card for name in ("second teacher", "made from"))
    begin, *_, end = record["history"]
    # It begins as the first model, whose embeddings the second teacher's are.
    assert begin["held_out_second_distance"] < 0.1
    assert end["held_out_pairs_found"] >= begin["held_out_pairs_found"]
    first, second = weights(tmp_path / "first"), weights(tmp_path / "second")
    assert torch.equal(first["phrases"], second["phrases"])
    assert not torch.equal(first["embedding.weight"], second["embedding.weight"])


FAILURES = [
    ({"encoder": "contextualiser"}, "unknown encoder 'contextualiser': did you mean 'contextualizer'? known are "),
    ({"dimension": 17}, "dimension must be at most the teacher's 16, got 17"),
    ({"held_out": 81}, "80 texts are too few for two batches of 16 (81 held out); "),
    ({"encoder": "lama", "encoder_options": {"output_dimension": 4}}, "output_dimension must be the student's dim"),
    ({"store": "int4"}, "unknown store 'int4'"),
    ({"spare_dimensions": 8}, "spare_dimensions must be in 0..7 for dimension 8, got 8"),
    ({"second_teacher": "./nowhere"}, "a second teacher needs texts; set second_texts for a source of the recipe"),
    ({"pair_weight": 0.5}, "--pair-weight needs pairs; give a recipe a source of pairs (.jsonl)"),
    ({"start": "./nowhere"}, "./nowhere: no such model folder"),
    ({"start": "a", "tokenizer": "b"}, "--from and --tokenizer cannot be combined: the model has its own vocabulary"),
    ({"second_label_weight": 0.5}, "second_label_weight needs a second teacher and labelled files; "),
]


@pytest.mark.parametrize(("options", "message"), FAILURES)
def test_what_is_wrong_is_found_before_the_teacher_is_asked(distill, tmp_path, monkeypatch, options, message):
    monkeypatch.setattr(TeacherCache, "embeddings", lambda *_, **__: pytest.fail("too late"))
    assert error(distill, **options).startswith(message)
    assert names(tmp_path) == ["corpus.txt"]


def test_places_that_are_taken(distill, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert error(distill, "file") == f"cannot write {tmp_path / 'file'}: it must be a folder, got a file"
    (tmp_path / "model.partial").write_text("mine")
    message = f"{tmp_path / 'model.partial'} must be a folder for the state of the run, got a file; remove it first"
    assert error(distill) == message
    assert names(tmp_path) == ["corpus.txt", "file", "model.partial"]
