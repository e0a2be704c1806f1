import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, fields

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ctx_embed import load
from ctx_embed.fingerprint import fingerprint
from ctx_embed.training.distillation import job
from ctx_embed.training.labelled_texts import hashes_of
from ctx_embed.training.options import ContextualizerOptions, DistillationJob, Source, read_recipe
from tests.helpers.errors import error
from tests.training.toy import other_values

NAMES = {"corpus", "epochs", "teacher", "learning_rate", "held_out", "sources", "encoder_options"}
CLOZE = '[[sources]]\nfiles = ["a"]\nfair = true\ncloze = true'
SMALL = {"dimension": 8, "steps": 1, "rank": 2, "epochs": 2, "batch_size": 16, "held_out": 16, "vocabulary_size": 120}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("heldout = 16", "unknown option of {} 'heldout': did you mean 'held_out'? known are corpus, "),
        ("\udcff", "{}: not TOML ('utf-8' codec can't decode byte 0xff"),
        ('corpus = "a.txt"', "{}: corpus must be a list of strings, got 'a.txt'"),
        ("epochs = true", "{}: epochs must be a string or a number, got True"),
        ("encoder_options = 3", "{}: encoder_options must be a table [encoder_options], got 3"),
        ("sources = [3]", "{}: sources must be tables [[sources]], got [3]"),
        ("[[sources]]\ntexts = 3", "{}: each source must have files; add files = [...]"),
        ('[[sources]]\nfiles = "a"', "{}: files of a source must be a list of strings, got 'a'"),
        ('[[sources]]\nfiles = ["a"]\ntexts = 1.5', "{}: texts of a source must be a whole number, at least 1, got "),
        ('[[sources]]\nfiles = ["a"]\ntexs = 2', "unknown option of a source in {} 'texs': did you mean 'texts'?"),
        ("[[sources]]\nfiles = []", "{}: a source must have at least one file, got none"),
        ('[[sources]]\nfiles = ["a"]\nfirst_words = 3', "{}: first_words of a source needs fair = true; add it, or "),
        ('[[sources]]\nfiles = ["a"]\ntaught = false', "{}: a source with taught = false must have fair = true and"),
        (f"{CLOZE}\npassage_lines = 3", "{}: cloze = true of a source needs fair = true, passage_lines above 1 and"),
    ],
)
def test_recipes_that_are_wrong(tmp_path, content, message):
    path = tmp_path / "recipe.toml"
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    assert error(read_recipe, path, NAMES).startswith(message.format(path))
    path.unlink()
    assert error(read_recipe, path, NAMES) == f"{path}: cannot be read (No such file or directory)"


@pytest.fixture
def corpus(tmp_path, sentences):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{sentence} {number}\n" for number in range(10) for sentence in sentences))
    return [path]


@pytest.fixture
def distill(corpus, tmp_path, tiny_model_path):
    def run(output="model", **options):
        options = {"teacher": str(tiny_model_path), **SMALL, **options}
        sources = options.pop("sources", None) or [Source(options.pop("corpus", corpus))]
        return job.distill(sources, tmp_path / output, progress=False, **options)

    return run


def record(folder) -> dict:
    return json.loads((folder / "training.json").read_text())


def test_a_model_and_its_record(distill, corpus, tmp_path, tiny_model, sentences):
    summary = distill(steps=2, seed=7, store="float16")
    assert sorted(os.listdir(tmp_path)) == ["corpus.txt", "model", "model.teacher"]
    assert {tensor.dtype for tensor in weights(tmp_path / "model").values()} == {torch.float16}
    model = load(tmp_path / "model")
    assert model.dtype == torch.float32
    assert np.linalg.norm(model.encode(sentences), axis=1) == pytest.approx(np.ones(8), abs=1e-6)
    made = record(tmp_path / "model")
    assert made["encoder"] == "contextualizer"
    defaults = {"positions": "none", "scale": "mean", "initial_context": "ones"}
    assert made["architecture"] == {"dimension": 8, "spare_dimensions": 0, "steps": 2, "rank": 2, **defaults}
    assert made["options"]["seed"] == 7
    assert made["teacher"]["fingerprint"] == fingerprint(tiny_model)
    hashes = {"corpus.txt": hashlib.sha256(corpus[0].read_bytes()).hexdigest()}
    (source,) = made["sources"]
    assert source == {**asdict(Source(corpus)), "files": hashes}
    assert (made["exclude"], made["excluded_texts"]) == ({}, 0)
    first, *_, last = (epoch["held_out_distance"] for epoch in made["history"])
    counts = {"texts": 80, "trained_texts": 64, "held_out_texts": 16, "kept_epoch": 2}
    assert summary == {**counts, "held_out_distance": last}
    assert last < first
    assert made["versions"].keys() == {"python", "ctx-embed", "sentence-transformers", "tokenizers", "torch"}
    card = (tmp_path / "model" / "README.md").read_text()
    assert re.findall("^## (.*)", card, re.MULTILINE) == ["Use", "Scores", "Training", "Licence", "Versions"]
    for said in (f"| held out distance | {first:.4f} | {last:.4f} |", "On 16 texts", "64 texts were trained on"):
        assert said in card
    assert f"{made['teacher']['name']}, fingerprint `{fingerprint(tiny_model)}`" in card


def test_a_run_is_known_by_all_that_its_model_depends_on(distill, corpus, tmp_path, tiny_model_path, monkeypatch):
    asked = []
    monkeypatch.setattr(job, "finished", lambda _, it, **__: asked.append(it) or dict.fromkeys(job.SUMMARY))
    other = tmp_path / "other.txt"
    other.write_text("another text\n")
    base = {"sources": [Source(corpus, fair=True, second_texts=1)], "spare_dimensions": 1, "labelled": corpus}
    changes = {"teacher": "default", "second_teacher": "default", "start": str(tiny_model_path), "encoder": "mean"}
    changes |= {"encoder_options": {"rank": 1}, "text_field": "a", "label_field": "b"}
    changes |= {name: [other] for name in ("exclude", "labelled")}
    changes |= {name: str(other) for name in ("skip", "validation", "tokenizer")}
    for kind in (DistillationJob, ContextualizerOptions):
        changes |= {name: value for name, value in other_values(kind) if name not in ("overwrite", "progress")}
    options = {field.name for kind in (DistillationJob, ContextualizerOptions) for field in fields(kind)}
    assert options - changes.keys() == {"sources", "output", "cache", "overwrite", "device", "progress"}
    distill(**base)
    for name, value in changes.items():
        distill(**{**base, name: value})
    for sources in ([Source([other], fair=True, second_texts=1)], [Source(corpus, fair=True, second_texts=2)]):
        distill(**{**base, "sources": sources})
    assert len(set(asked)) == len(asked)
    # What was asked of other files with the same contents is the same.
    copy = tmp_path / "copy.txt"
    shutil.copy(corpus[0], copy)
    distill(**{**base, "sources": [Source([copy], fair=True, second_texts=1)]})
    assert asked[-1] == asked[0]


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_sources_phrases_labels_and_pairs_in_an_int8_model(distill, corpus, tmp_path, sentences):
    # A phrase must occur twenty times.
    corpus[0].write_text(corpus[0].read_text() * 2)
    labelled, pairs = tmp_path / "labelled.tsv", tmp_path / "pairs.tsv"
    labelled.write_text("".join(f"{number % 2}\t{text}\n" for number, text in enumerate(sentences * 4)))
    pairs.write_text("".join(f"{number}\t{text}\t{sentences[0]}\n" for number, text in enumerate(sentences)))
    excluded = tmp_path / "excluded.txt"
    excluded.write_text(f"{sentences[0]}\n")
    summary = distill(
        sources=[Source([str(corpus[0])]), Source(corpus, texts=10, passage_lines=3), Source(corpus, span_words=4)],
        labelled=[str(labelled)],
        exclude=[str(excluded)],
        validation=str(pairs),
        phrases=10,
        spare_dimensions=2,
        store="int8",
    )
    # 160 lines make passages of 2, 3, 2, .. lines: 64 of them, all of one block.
    assert summary["texts"] == 160 + 64 + 160
    folder = tmp_path / "model"
    made = record(folder)
    assert made["phrases"] == 10
    assert {"held_out_label_accuracy", "pairs_spearman"} < made["history"][-1].keys()
    # A short run shows its course too.
    assert len([entry["loss"] for entry in made["losses"]]) >= 20
    stored = weights(folder)
    assert stored["embedding.weight"].dtype == torch.int8
    assert (load(folder)[0].labelled_texts == hashes_of(sentences[1:])).all()
    model = load(folder)
    assert model[0].entries == len(stored["embedding.weight"]) == model[0].backend_tokenizer.get_vocab_size() + 10
    # What was trained is what was saved: the phrases' rows hold their parts.
    assert model[0].embedding.weight[-10:].abs().sum(1).min() > 0.1
    assert fingerprint(model) == fingerprint(load(folder))
    model.save_pretrained(str(tmp_path / "again"))
    assert all(torch.equal(tensor, stored[name]) for name, tensor in weights(tmp_path / "again").items())


def test_texts_that_the_teacher_cannot_read_are_counted(corpus, tmp_path, tiny_model_path, capsys):
    with corpus[0].open("a") as file:
        file.write("☃\n☃ ☂\n")
    summary = job.distill(corpus, tmp_path / "model", teacher=str(tiny_model_path), **SMALL)
    assert "the teacher's embeddings of 2 of 82 texts are zeros; they are left out: " in capsys.readouterr().err
    assert (summary["trained_texts"], summary["held_out_texts"]) == (64, 16)


def test_a_second_stage_with_pairs_and_a_second_teacher(distill, corpus, tmp_path, sentences, tiny_model_path):
    told = [f"{number // 2} {sentence}" for number in range(8) for sentence in sentences]
    labelled = tmp_path / "first.tsv", tmp_path / "second.tsv"
    for file, texts in zip(labelled, (told[:32], told[32:]), strict=True):
        file.write_text("".join(f"{number % 2}\t{text}\n" for number, text in enumerate(texts)))
    summary = distill("first", phrases=3, spare_dimensions=2, held_out=None, labelled=labelled[:1])
    assert (summary["trained_texts"], summary["held_out_texts"]) == (72, 8)
    assert record(tmp_path / "first")["options"]["held_out"] == 8
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"query": f"{text} {n}", "passage": f"{n} {text}"} for n in range(6) for text in sentences]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [Source(corpus, fair=True, second_texts=40), Source([pairs], fair=True)]
    stage = {"sources": sources, "spare_dimensions": 2, "start": str(tmp_path / "first"), "epochs": 3}
    stage |= {"labelled": labelled[1:]}
    stage |= {"second_teacher": str(tmp_path / "first"), "pair_weight": 0.5, "pair_batch": 8}
    summary = distill("second", **stage)
    assert summary["texts"] == 80 + 2 * 48
    second = record(tmp_path / "second")
    assert second["from"]["fingerprint"] == second["second_teacher"]["fingerprint"]
    assert second["from"]["fingerprint"] == fingerprint(load(tmp_path / "first"))
    card = (tmp_path / "second" / "README.md").read_text()
    assert all(f"| {name} | {tmp_path / 'first'}" in card for name in ("second teacher", "made from"))
    begin, *_, end = second["history"]
    # It begins as the first model, whose embeddings the second teacher's are.
    assert begin["held_out_second_distance"] < 0.1
    assert end["held_out_pairs_found"] >= begin["held_out_pairs_found"]
    before, after = weights(tmp_path / "first"), weights(tmp_path / "second")
    assert torch.equal(before["phrases"], after["phrases"])
    assert not torch.equal(before["embedding.weight"], after["embedding.weight"])
    # A model knows the labelled texts of all that it learned from.
    assert (load(tmp_path / "second")[0].labelled_texts == hashes_of(told)).all()
    # The start's share of the weights is that of the saved ones.
    stage |= {"epochs": 1, "store": "float32"}
    distill("trained", **stage, start_share=0.0)
    distill("mean", **stage, start_share=0.75)
    start, trained, mean = (load(tmp_path / name)[0].state_dict() for name in ("first", "trained", "mean"))
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor.float(), 0.75 * start[name].float() + 0.25 * trained[name].float())


FAILURES = [
    ({"encoder": "contextualiser"}, "unknown encoder 'contextualiser': did you mean 'contextualizer'? known are "),
    ({"dimension": 17}, "dimension must be at most the teacher's 16, got 17"),
    ({"held_out": 81}, "80 texts are too few for two batches of 16 (81 held out); "),
    ({"encoder": "lama", "encoder_options": {"output_dimension": 4}}, "output_dimension must be the student's dim"),
    ({"spare_dimensions": 8}, "spare_dimensions must be in 0..7 for dimension 8, got 8"),
    ({"second_teacher": "./nowhere"}, "a second teacher needs texts; set second_texts for a source of the recipe"),
    ({"pair_weight": 0.5}, "--pair-weight needs pairs; give a recipe a source of pairs (.jsonl)"),
    ({"start": "./nowhere"}, "./nowhere: no such model folder"),
    ({"start": "a", "tokenizer": "b"}, "--from and --tokenizer cannot be combined: the model has its own vocabulary"),
    ({"taught_label_weight": 0.5}, "taught_label_weight needs labelled files; "),
]


@pytest.mark.parametrize(("options", "message"), FAILURES)
def test_what_is_wrong_is_found_before_the_teacher_is_asked(distill, tmp_path, monkeypatch, options, message):
    monkeypatch.setattr(job.TeacherCache, "embeddings", lambda *_, **__: pytest.fail("too late"))
    if not options.keys() & {"dimension", "held_out", "pair_weight"}:  # what no teacher or text decides
        monkeypatch.setattr(job, "load", lambda *_, **__: pytest.fail("too late"))
    assert error(distill, **options).startswith(message)
    assert sorted(os.listdir(tmp_path)) == ["corpus.txt"]


def test_a_run_that_diverged_is_not_resumed(distill, tmp_path, monkeypatch):
    monkeypatch.setattr(job.Distillation, "checkpoint_steps", 1)
    saved = []
    monkeypatch.setattr(job.Checkpoint, "remove", lambda it: saved.append(it.load() is not None))
    assert error(distill, learning_rate=1e30).startswith("the training diverged at step ")
    assert saved == [True]


def test_places_that_are_taken(distill, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert error(distill, "file") == f"cannot write {tmp_path / 'file'}: it must be a folder, got a file"
    (tmp_path / "model.partial").write_text("mine")
    message = f"{tmp_path / 'model.partial'} must be a folder for the state of the run, got a file; remove it first"
    assert error(distill) == message
    assert sorted(os.listdir(tmp_path)) == ["corpus.txt", "file", "model.partial"]
