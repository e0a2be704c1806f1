"""Pre-training on masked words, and the table of the model that it makes."""

import gzip
import json

import pytest
import torch
from tokenizers import Tokenizer

from ctx_embed.loading import load
from ctx_embed.modules import Contextualizer
from ctx_embed.training.run import Checkpoint
from papers import RunOptions, find_experiment, masked_words, reproduce
from papers.pretraining import gain
from papers.report import as_markdown
from tests.helpers.errors import error


@pytest.fixture
def vocabulary_with_mask(tokenizer, tmp_path):
    own = Tokenizer.from_str(tokenizer.to_str())
    own.add_special_tokens([masked_words.MASK])
    own.save(str(tmp_path / "masked.json"))
    return tmp_path / "masked.json"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "plain.txt").write_text("".join(f"the film was a joy {n}\n\n" for n in range(500)))
    with gzip.open(tmp_path / "packed.txt.gz", "wt") as file:
        file.write("".join(f"a dull film without one good idea {n}\n" for n in range(500)))
    return [tmp_path / "plain.txt", tmp_path / "packed.txt.gz"]


def pretrained(out, files, vocabulary, **options):
    masked_words.pretrain(out, files, 800, tokenizer=vocabulary, **options)
    return load(str(out))[0].state_dict()


def test_the_loss_falls_and_an_interrupted_run_continues(files, vocabulary_with_mask, tmp_path, monkeypatch):
    monkeypatch.setattr(masked_words, "BATCH", 16)
    monkeypatch.setattr(masked_words, "STORED_EVERY", 20)
    whole = pretrained(tmp_path / "whole", files, vocabulary_with_mask)
    record = json.loads((tmp_path / "whole" / masked_words.RECORD).read_text())
    assert record["losses"][-1] < 0.8 * record["losses"][0]
    assert record["sentences"] == 800
    save = Checkpoint.save

    def interrupted(checkpoint, state):
        save(checkpoint, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pretrained(tmp_path / "resumed", files, vocabulary_with_mask)
    monkeypatch.setattr(Checkpoint, "save", save)
    resumed = pretrained(tmp_path / "resumed", files, vocabulary_with_mask)
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
    again = json.loads((tmp_path / "resumed" / masked_words.RECORD).read_text())
    assert again["losses"] == record["losses"]


def test_the_table_reads_the_model(files, vocabulary_with_mask, workplace, tmp_path):
    experiment = find_experiment("pretraining")
    assert reproduce(experiment, tmp_path / "cells", workplace, RunOptions(patterns=("pre-trained_*",))).files
    assert list((tmp_path / "cells").glob("*.json")) == []
    pretrained(tmp_path / "model", files, vocabulary_with_mask)
    options = RunOptions(quick=True, folds=1, changes={"start": str(tmp_path / "model")})
    results = reproduce(experiment, tmp_path / "cells", workplace, options)
    figures = {outcome.cell.key: outcome.figures for outcome in results.outcomes}
    assert "pretraining" not in figures["from-scratch_mr"]
    assert figures["pre-trained_mr"]["pretraining"]["sentences"] == 800
    # Both have the same attention; it is counted without the token table.
    assert figures["from-scratch_mr"]["parameters"] == figures["pre-trained_mr"]["parameters"]
    line = experiment.claim.line(results.outcomes)
    assert "one reading of 800 sentences with hidden words takes 0.0" in line
    assert "| pre-trained | MPQA |" in as_markdown(results)


def test_what_pretraining_refuses_and_gains(files, vocabulary, vocabulary_with_mask, tmp_path):
    said = error(masked_words.pretrain, tmp_path / "out", files, 2000, tokenizer=vocabulary_with_mask)
    assert said == "sentences must be at most the 1,000 of the files, got 2,000"
    said = error(masked_words.pretrain, tmp_path / "out", files, 100, tokenizer=vocabulary)
    assert said.startswith("the vocabulary must have an entry [MASK]")
    found = {("from scratch", "MR"): {"accuracies": [70.0, 80.0]}, ("pre-trained", "MR"): {"accuracies": [71.0, 83.0]}}
    assert gain(found, "MR") == "+2.0 ± 1.0"
    found["pre-trained", "MR"]["accuracies"] = [69.5]
    assert gain(found, "MR") == "-0.5"


def test_the_loss_by_hand(tokenizer):
    torch.manual_seed(0)
    module = Contextualizer(tokenizer, 8, steps=2, rank=3)
    ids, lengths = torch.tensor([4, 5, 6, 5, 7]), [3, 2]
    hidden = torch.tensor([False, True, False, False, True])
    contexts = module.embed(torch.tensor([4, 1, 6, 5, 1]), lengths)
    scores = contexts @ module.embedding.weight[4:8].T
    expected = -(scores.log_softmax(1)[0, 1] + scores.log_softmax(1)[1, 3]) / 2
    torch.testing.assert_close(masked_words.loss_of_hidden(module, ids, lengths, hidden, 1), expected)
