from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import BoW
from torch.nn import functional as F

from ctx_embed.classify.labelled import Labelled
from ctx_embed.training.batches import seeded_batches
from ctx_embed.training.options import FINE_TUNING, SupervisedOptions
from ctx_embed.training.run import Checkpoint
from ctx_embed.training.supervised.train import ClassifierNetwork, best_epochs, new_encoder, train_classifier
from tests.helpers.errors import error
from tests.training.toy import OPTIONS, same, state

# Training


def test_a_separable_set_is_learned(encoder, data):
    model = encoder()
    classifier, history = train_classifier(model, data, data, SupervisedOptions(20, 8, 0.02), progress=False)
    assert classifier.encoder is model
    assert classifier.labels == ["+", "-"]
    assert history[-1]["valid_accuracy"] == 1
    assert classifier.accuracy(data) == 1
    assert classifier.predict(data.texts) == list(data.labels)
    assert classifier.predict([]) == []
    assert not classifier.training
    assert [entry["epoch"] for entry in history] == list(range(1, 21))
    assert history[-1]["train_loss"] < 0.1 * history[0]["train_loss"]


@pytest.mark.parametrize("steps", ["best", "ties"])
def test_the_best_epoch_is_kept_and_of_equal_ones_the_first(encoder, data, monkeypatch, steps):
    accuracies = {"best": [0.2, 0.9, 0.5, 0.3], "ties": [0.2, 0.9, 0.9, 0.9]}[steps]
    states = []

    def measured(self, _):
        states.append(state(self))
        return accuracies[len(states) - 1]

    monkeypatch.setattr(ClassifierNetwork, "accuracy", measured)
    classifier, history = train_classifier(encoder(), data, data, OPTIONS, progress=False)
    assert [entry["valid_accuracy"] for entry in history] == accuracies
    # In training the table has the texts' rows alone.
    del states[1]["encoder.0.embedding.weight"]
    assert same(states[1], state(classifier))
    assert not torch.equal(state(classifier)["head.weight"], states[3]["head.weight"])


@pytest.mark.parametrize("head", ["zeros", "random"])
def test_an_epoch_by_hand(encoder, data, head):
    model, other = encoder(), encoder()
    options = SupervisedOptions(epochs=1, batch_size=20, learning_rate=0.02, seed=3, head=head)
    torch.manual_seed(3)
    reference = ClassifierNetwork(other, ["+", "-"])
    if head == "zeros":
        for parameter in reference.head.parameters():
            torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.02)
    losses = []
    for rows in seeded_batches(40, 20, 3, 0):
        target = torch.tensor([["+", "-"].index(data.labels[row]) for row in rows])
        loss = F.cross_entropy(reference.train()([data.texts[row] for row in rows]), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    classifier, history = train_classifier(model, data, data, options, progress=False)
    # Rows of the table that no text uses stayed as they were drawn.
    for name, tensor in state(reference).items():
        torch.testing.assert_close(classifier.state_dict()[name], tensor, rtol=1e-4, atol=1e-6)
    assert history[0]["train_loss"] == pytest.approx(np.mean(losses))
    assert (abs(losses[0] - np.log(2)) < 1e-6) == (head == "zeros")


@pytest.mark.parametrize(("name", "head"), [("contextualizer", "zeros"), ("cnn", "random"), ("mean", "random")])
def test_without_a_wish_the_head_is_what_suits_the_encoder(encoder, data, name, head):
    def run(options):
        model = new_encoder(None, data.texts, encoder=name, dimension=8)
        return train_classifier(model, data, data, replace(options, epochs=1), progress=False)[0]

    of_its_own, named = run(OPTIONS), run(replace(OPTIONS, head=head))
    other = run(replace(OPTIONS, head="random" if head == "zeros" else "zeros"))
    assert same(state(of_its_own), state(named))
    assert not same(state(of_its_own), state(other))
    assert OPTIONS.of_encoder(of_its_own.encoder).head == head
    assert FINE_TUNING.of_encoder(of_its_own.encoder).head == "probe"
    words = SentenceTransformer(modules=[BoW(["good", "bad"])], device="cpu")
    assert OPTIONS.of_encoder(words).head == "random"


@pytest.mark.parametrize("like_length", [False, True])
def test_without_validation_texts_a_share_is_held_out(encoder, data, monkeypatch, like_length):
    batches = []
    forward = ClassifierNetwork.forward

    def watched(self, texts, **options):
        if self.training:
            batches.append(texts)
        return forward(self, texts, **options)

    monkeypatch.setattr(ClassifierNetwork, "forward", watched)
    options = SupervisedOptions(epochs=1, batch_size=8, like_length=like_length)
    train_classifier(encoder(), data, None, options, progress=False)
    train, valid = data.split(0.1, 0)
    seen = [text for batch in batches for text in batch]
    assert sorted(seen) == sorted(train.texts)
    assert not set(seen) & set(valid.texts)
    lengths = sorted([len(text) for text in batch] for batch in batches)
    assert all(max(first) <= min(second) for first, second in pairwise(lengths)) == like_length


def test_another_optimizer_takes_adams_place(encoder, data):
    still, moved = encoder(), encoder()
    before = still[0].embedding.weight.clone()
    asked = []

    def sgd(parameters, learning_rate):
        asked.append(learning_rate)
        return torch.optim.SGD(parameters, 0.0)

    train_classifier(still, data, data, OPTIONS, progress=False, optimizer=sgd)
    train_classifier(moved, data, data, OPTIONS, progress=False)
    assert asked == [OPTIONS.learning_rate]
    assert torch.equal(still[0].embedding.weight, before)
    assert not torch.equal(moved[0].embedding.weight, before)


def test_runs_are_averaged_and_each_holds_out_another_part(encoder, data):
    options = replace(OPTIONS, runs=3, head="probe", seed=4)
    classifier, history = train_classifier(encoder(), data, None, options, progress=False)
    alone = [
        train_classifier(encoder(), data, None, replace(options, runs=1, seed=options.seed_of(run)), progress=False)
        for run in range(3)
    ]
    assert options.seed_of(0) == 4
    assert len({tuple(data.split(0.1, options.seed_of(run))[1].texts) for run in range(3)}) == 3
    assert [{**entry, "run": 1} for entry in history] == [entry for _, entries in alone for entry in entries]
    assert [entry["run"] for entry in history] == [1] * 4 + [2] * 4 + [3] * 4
    assert best_epochs(history) == [
        max(history[begin : begin + 4], key=lambda entry: entry["valid_accuracy"]) for begin in (0, 4, 8)
    ]
    for name, tensor in state(classifier).items():
        mean = torch.stack([state(one)[name].double() for one, _ in alone]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)
    assert classifier.encoder[0].labelled_texts is not None


class Dropped(torch.nn.Dropout):
    def forward(self, features):
        return {**features, "sentence_embedding": super().forward(features["sentence_embedding"])}


@pytest.mark.parametrize(("stop", "dropout"), [(3, 0), (4, 0.5), (6, 0), (11, 0.5)])
def test_interrupted_runs_go_on_where_they_stopped(encoder, data, tmp_path, monkeypatch, stop, dropout):
    def begin():
        return SentenceTransformer(modules=[encoder()[0], Dropped(dropout)], device="cpu")

    options = replace(OPTIONS, runs=3, head="probe")
    whole, whole_history = train_classifier(begin(), data, None, options, progress=False)
    save, saved = Checkpoint.save, []

    def interrupted(self, values):
        save(self, values)
        saved.append(1)
        if len(saved) == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", interrupted)
    # The same encoder, trained in place by then, goes on as a fresh one would.
    model = begin()
    with pytest.raises(KeyboardInterrupt):
        train_classifier(model, data, None, options, Checkpoint(tmp_path / "model", "run"), progress=False)
    again, history = train_classifier(model, data, None, options, Checkpoint(tmp_path / "model", "run"), progress=False)
    assert len(saved) == 12
    assert history == whole_history
    assert same(state(again), state(whole))


def test_weights_that_do_not_change_have_themselves_as_their_mean(encoder, data):
    model = encoder()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train_classifier(model, data, None, replace(OPTIONS, runs=3), progress=False)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_labels_that_training_lacks(encoder, data):
    many = Labelled([str(number) for number in range(9)], ["text"] * 9)
    message = "the validation texts have labels that the training texts lack: '0', '1', '2', '3', '4', ..."
    assert error(train_classifier, encoder(), data, many) == message


def test_a_training_that_diverges_is_stopped(encoder, data):
    options = SupervisedOptions(epochs=1, batch_size=8, learning_rate=1e30, head="random")
    message = "the training diverged at step 2 (nan); lower --learning-rate"
    assert error(train_classifier, encoder(), data, data, options, progress=False) == message
    options = replace(options, batch_size=40)
    message = "the classifier's outputs are not finite; train it with a lower learning rate"
    assert error(train_classifier, encoder(), data, data, options, progress=False) == message


def test_a_new_encoder(tokenizer, tmp_path, sentences):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = str(tmp_path / "tokenizer.json")
    model = new_encoder(None, [], path, seed=5, device="cpu", dimension=8, steps=1, rank=2, positions="absolute")
    assert model.get_embedding_dimension() == 8
    assert model[0].positions == "absolute"
    assert model[0].backend_tokenizer.get_vocab() == tokenizer.get_vocab()
    again = new_encoder(None, [], path, seed=5, device="cpu", dimension=8, steps=1, rank=2, positions="absolute")
    other = new_encoder(None, [], path, seed=6, device="cpu", dimension=8, steps=1, rank=2, positions="absolute")
    assert np.array_equal(again.encode(sentences), model.encode(sentences))
    assert not np.array_equal(other.encode(sentences), model.encode(sentences))
    learned = new_encoder(None, sentences, vocabulary_size=60, device="cpu", dimension=8)
    assert learned[0].backend_tokenizer.get_vocab_size() == 60


def test_a_model_to_start_from(tiny_model, tiny_model_path, sentences):
    model = new_encoder(str(tiny_model_path), sentences, dimension=99)
    assert np.array_equal(model.encode(sentences), tiny_model.encode(sentences))
    assert error(new_encoder, "./nowhere", []) == "./nowhere: no such model folder"


def test_a_device_that_is_not_there(sentences):
    for start in (None, "default"):
        assert error(new_encoder, start, sentences, device="warp").startswith("device 'warp' cannot be used here (")


def test_tokens_that_are_not_seen_make_the_training_loss_higher(encoder, data):
    losses = []
    for dropout in (0.0, 0.6):
        options = SupervisedOptions(epochs=12, batch_size=8, learning_rate=0.02, token_dropout=dropout)
        _, history = train_classifier(encoder(), data, data, options, progress=False)
        losses.append(history[-1]["train_loss"])
        assert history[-1]["valid_accuracy"] >= 0.9  # validation sees every token
    assert losses[1] > 2 * losses[0]


def test_the_penalty_is_told_apart_from_the_cross_entropy(data, tokenizer):
    def entry(penalty):
        model = new_encoder(None, data.texts, encoder="san", dimension=8, heads=3, penalty=penalty)
        (entry,) = train_classifier(model, data, data, SupervisedOptions(1, 40), progress=False)[1]
        return entry

    without, with_penalty = entry(0.0), entry(2.0)
    assert without["train_loss"] == without["cross_entropy"] == pytest.approx(with_penalty["cross_entropy"])
    assert with_penalty["train_loss"] > with_penalty["cross_entropy"] + 1


# Words


def test_words_are_read_if_they_make_held_out_labels_likelier(encoder):
    options = SupervisedOptions(epochs=1, batch_size=50, learning_rate=1e-6, head="random")
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 200).tolist()
    data = Labelled(labels, [f"{'good' if label else 'bad'} {random.integers(1000)}" for label in labels])
    for valid in (None, data):
        model, _ = train_classifier(encoder(), data, valid, options, words=True, progress=False)
        assert model.accuracy(data) > 0.95
        assert model.classifier().head.words is model.words is not None
    model, _ = train_classifier(encoder(), data, None, options, progress=False)
    assert model.words is None
    shuffled = Labelled(labels[::-1], data.texts)
    assert train_classifier(encoder(), shuffled, None, options, words=True, progress=False)[0].words is None
