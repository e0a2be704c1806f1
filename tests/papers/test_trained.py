from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from ctx_embed.eval.scoring.probes import folds_of
from ctx_embed.systems.attention import AttentionWeights
from papers import find_experiment
from papers.attended_words import most_attended, words_of
from papers.classifier_cells import (
    accuracy_summary,
    fold_parts,
    initial_encoder,
    settings_from,
    settings_of,
    train_and_test,
    trained,
)
from papers.experiment import Verdict
from papers.runner import changed, chosen

TINY = {**settings_of("MR", "mean", {"epochs": 3, "learning_rate": 0.05}, dimension=8), "speed": True}


def test_mean_and_deviation_by_hand():
    parts = {
        "speed": {"ms": 2.5, "training_ms": 7.5, "parameters": 9, "seconds": 100.0},
        "fold 1": {"accuracy": 70.0, "parameters": 9, "seconds": 1.0},
        "fold 2": {"accuracy": 74.0, "parameters": 9, "seconds": 3.0},
        "fold 4": {"accuracy": 78.0, "parameters": 9, "seconds": 2.0},
    }
    mean = {"accuracy": 74.0, "tests": 3, "seconds_each": 2.0, "std": 4.0, "standard_error": pytest.approx(4 / 3**0.5)}
    assert accuracy_summary({}, parts) == {"ms": 2.5, "training_ms": 7.5, "parameters": 9, **mean}
    assert "std" not in accuracy_summary({}, {"fold 1": parts["fold 1"]})
    assert "accuracy" not in accuracy_summary({}, {"speed": parts["speed"]})


def test_parts_and_settings():
    assert fold_parts(TINY, 2) == ["speed", "fold 1", "fold 2"]
    assert fold_parts({}, 1) == ["fold 1"]
    # Each encoder's head is that of train.
    heads = {name: settings_of("MR", name)["training"]["head"] for name in ("contextualizer", "transformer", "dan")}
    assert heads == {"contextualizer": "zeros", "transformer": "random", "dan": "random"}
    assert settings_of("MR", "dan", {"head": "zeros"})["training"]["head"] == "zeros"
    default = settings_from("CR", "default")["training"]
    assert default["head"] == "probe"
    assert "seed" not in default


def test_a_fold_tests_its_own_rows(workplace):
    figures = train_and_test(TINY, "fold 3", workplace)
    rows = workplace.labelled("MR", "MR")
    classes = np.array([int(label) for label in rows.labels])
    train, test = folds_of(np.arange(40), classes, 10, 0)[2]
    classifier, _ = trained(
        TINY, workplace, type(rows)([rows.labels[i] for i in train], [rows.texts[i] for i in train]), 2
    )
    expected = [classifier.predict([rows.texts[i]])[0] == rows.labels[i] for i in test]
    assert figures["accuracy"] == 100 * np.mean(expected) == 100.0
    assert len(figures["loss"]) == 3
    assert figures["loss"][2] < figures["loss"][0]
    assert figures["parameters"] == 0


def test_speed_and_test_part(workplace):
    times = train_and_test(TINY, "speed", workplace)
    assert 0 < times["ms"] < times["training_ms"]
    settings = {**TINY, "task": "R8"}
    of_test = train_and_test(settings, "test", workplace)
    train, test = workplace.labelled("R8", "train"), workplace.labelled("R8", "test")
    classifier, _ = trained(settings, workplace, train, 0)
    expected = [label == known for label, known in zip(classifier.predict(test.texts), test.labels, strict=True)]
    assert of_test["accuracy"] == pytest.approx(100 * np.mean(expected))
    assert of_test["best_epoch"] in (1, 2, 3)


def test_tokens_cut_and_rows_sample(workplace, tokenizer, tmp_path):
    whole, cut = workplace.labelled("MR", "MR"), workplace.labelled("MR", "MR", 7)
    for part, text in zip(cut.texts, whole.texts, strict=True):
        assert text.startswith(part)
        assert tokenizer.encode(part).tokens == tokenizer.encode(text).tokens[:7]
    sample = workplace.labelled("MR", "MR", None, 10)
    assert sorted(sample.labels) == ["0"] * 5 + ["1"] * 5
    assert set(sample.texts) <= set(whole.texts)
    assert workplace.labelled("MR", "MR", 1000).texts == whole.texts
    # The vocabulary's own truncation is not read.
    padding = Tokenizer.from_str(tokenizer.to_str())
    padding.enable_truncation(5)
    padding.save(str(tmp_path / "padding.json"))
    assert replace(workplace, tokenizer=tmp_path / "padding.json").labelled("MR", "MR", 7) == cut


def test_words_are_joined_and_weighed_and_those_of_a_class_stand_in_more_of_its_texts():
    weights = np.array([[0.1, 0.3, 0.2, 0.4], [0.3, 0.1, 0.2, 0.4]], np.float32)
    attention = AttentionWeights(("un", "##know", "##n", "film"), weights, ("head", "token"))
    words = dict(words_of(attention))
    assert words == {"unknown": pytest.approx(4 * 0.2), "film": pytest.approx(4 * 0.4)}
    attention = {
        "0": {"dull": [9, 1.2], "film": [5, 3.0], ".": [9, 9.0], "bad": [6, 1.5]},
        "1": {"film": [7, 2.0], "dull": [2, 4.0]},
    }
    assert most_attended(attention, "0") == ["bad", "dull"]
    assert most_attended(attention, "1") == ["film"]


def test_changed_initial_values(workplace):
    """Only the named initial values change."""
    changes = {"token_deviation": 1, "initial_b": 0, "initial_gain": 0.1}
    (cell,) = chosen(find_experiment("table3"), ["ones_k-5"])
    plain = initial_encoder(cell.settings, workplace, 0)[0].state_dict()
    other = initial_encoder(changed(cell.settings, changes), workplace, 0)[0].state_dict()
    table = plain.pop("embedding.weight")
    assert 0.025 < table.std() < 0.035
    torch.testing.assert_close(other.pop("embedding.weight"), table / 0.03)
    assert (plain.pop("attention.b").unique(), other.pop("attention.b").unique()) == (1, 0)
    assert plain.pop("attention.gain").unique() == 1
    torch.testing.assert_close(other.pop("attention.gain").unique(), torch.tensor([0.1]))
    assert plain.keys() == other.keys()
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    (cell,) = chosen(find_experiment("table4"), ["dan_mr"])
    settings = changed(cell.settings, {"token_deviation": 0.5, "initial_b": 0})
    assert settings["initial"] == {"token_deviation": 0.5}
    assert 0.4 < initial_encoder(settings, workplace, 0)[0].embedding.weight.std() < 0.6


def test_a_redrawn_context_differs_at_each_reading(workplace):
    ones, uniform = chosen(find_experiment("table3"), ["ones_k-1", "uniform_k-1"])
    seeded = initial_encoder(uniform.settings, workplace, 0)
    redrawn = initial_encoder(changed(uniform.settings, {"redrawn": True}), workplace, 0)
    text = "a film about a house by the sea"
    assert (seeded.encode(text) == seeded.encode(text)).all()
    assert abs(redrawn.encode(text) - redrawn.encode(text)).max() > 0.01
    assert changed(ones.settings, {"redrawn": True}) == ones.settings


def test_the_words_of_table_4_by_hand():
    claim = find_experiment("lama-table4").claim
    found = {
        ("LAMA", f"R8: {name}"): {"attention": {name: words}}
        for name, words in (("ship", {"gulf": 1.2, "cargo": 0.9}), ("money-fx", {"fed": 1.1}))
    }
    measured, verdict = claim.check(found)
    assert measured == (
        "of the words that the paper lists, 1 of 2 for ship and 1 of 1 for money-fx get more than uniform attention."
    )
    assert verdict is Verdict.IN_PART
    found["LAMA", "R8: ship"]["attention"]["ship"]["cargo"] = 1.01
    assert claim.check(found)[1] is Verdict.HOLDS
