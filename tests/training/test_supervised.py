import copy
import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler
from torch.nn import functional as F

from ctx_embed.classify.fitting import fitted_head
from ctx_embed.classify.head import class_weights
from ctx_embed.classify.labelled import Labelled
from ctx_embed.classify.predictor import Predictor
from ctx_embed.model import Model
from ctx_embed.modules.sentence_transformer import raw_embeddings
from ctx_embed.modules.token_encoder import as_int8
from ctx_embed.systems import untrained
from ctx_embed.training.batches import seeded_batches
from ctx_embed.training.labelled_texts import hashes_of, joined
from ctx_embed.training.options import SupervisedOptions, TrainingJob
from ctx_embed.training.run import Checkpoint
from ctx_embed.training.supervised import job, train as training
from ctx_embed.training.supervised.train import compact_tables, new_encoder
from tests.helpers.errors import error
from tests.training.toy import forty_texts, other_values, same, state

OPTIONS = SupervisedOptions(epochs=4, batch_size=8, learning_rate=0.02)
trained = partial(training.train_classifier, progress=False)


def weights(predictor: Predictor) -> dict[str, torch.Tensor]:
    head = {"head": torch.from_numpy(predictor.head.weight), "bias": torch.from_numpy(predictor.head.bias)}
    return {**state(predictor.encoder.backend), **head}


@pytest.fixture
def data() -> Labelled:
    return forty_texts()


@pytest.fixture
def encoder(data):
    """Make a small encoder over the words of the texts."""
    sizes = {"vocabulary_size": 150, "device": "cpu", "dimension": 8, "steps": 2, "rank": 3}
    return partial(new_encoder, None, data.texts, **sizes)


def test_a_separable_set_is_learned_with_a_higher_loss_where_tokens_are_not_seen(encoder, data):
    losses = []
    for dropout in (0.0, 0.6):
        model = encoder()
        classifier, history = trained(model, data, data, SupervisedOptions(20, 8, 0.02, token_dropout=dropout))
        assert classifier.encoder.backend is model
        # Validation sees every token.
        assert history[-1]["valid_accuracy"] == classifier.accuracy(data) == 1
        assert classifier.predict(data.texts) == list(data.labels)
        assert not model.training
        assert [entry["epoch"] for entry in history] == list(range(1, 21))
        losses.append(history[-1]["train_loss"])
    assert losses[0] < 0.1 * history[0]["train_loss"]
    assert losses[1] > 2 * losses[0]
    assert classifier.predict([]) == []


@pytest.mark.parametrize("accuracies", [[0.2, 0.9, 0.5, 0.3], [0.2, 0.9, 0.9, 0.9]], ids=["best", "ties"])
def test_the_best_epoch_is_kept_and_of_equal_ones_the_first(encoder, data, monkeypatch, accuracies):
    states = []

    def measured(self, _):
        states.append(weights(self))
        return accuracies[len(states) - 1]

    monkeypatch.setattr(Predictor, "accuracy", measured)
    classifier, history = trained(encoder(), data, data, OPTIONS)
    assert [entry["valid_accuracy"] for entry in history] == accuracies
    # In training the table has the texts' rows alone.
    del states[1]["0.embedding.weight"]
    assert same(states[1], weights(classifier))
    assert not torch.equal(weights(classifier)["head"], states[3]["head"])


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("head", "class_weight"), [("zeros", None), ("random", None), ("zeros", {"-": 3.0})])
def test_an_epoch_by_hand(encoder, data, head, class_weight, several):
    model, other = encoder(), encoder()
    if several:
        data = Labelled(
            [("+",) * (label == "+") + ("-",) * (n % 3 > 0) for n, label in enumerate(data.labels)], data.texts
        )
        # What is frozen stays.
        for each in (model, other):
            each[0].embedding.requires_grad_(False)
    options = SupervisedOptions(epochs=1, batch_size=20, learning_rate=0.02, seed=3, head=head)
    torch.manual_seed(3)
    linear = torch.nn.Linear(8, 2)
    if head == "zeros":
        for parameter in linear.parameters():
            torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.Adam([*other.parameters(), *linear.parameters()], lr=0.02)
    losses, weight = [], torch.tensor([1.0, 3.0 if class_weight else 1.0])
    for rows in seeded_batches(40, 20, 3, 0):
        logits = linear(raw_embeddings(other, [data.texts[row] for row in rows]))
        target = torch.tensor([[float(label in data.labels[row]) for label in "+-"] for row in rows])
        if several:
            loss = F.binary_cross_entropy_with_logits(logits, target, pos_weight=weight)
        else:
            loss = F.cross_entropy(logits, target.argmax(1), weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    classifier, history = trained(model, data, data, options, class_weight=class_weight)
    # Rows of the table that no text uses stayed as they were drawn.
    expected = {**state(other), "head": linear.weight.detach(), "bias": linear.bias.detach()}
    torch.testing.assert_close(weights(classifier), expected, rtol=1e-4, atol=1e-6)
    assert history[0]["train_loss"] == history[0]["cross_entropy"] == pytest.approx(np.mean(losses))
    assert (classifier.head.labels, classifier.head.multi_label) == (["+", "-"], several)
    assert history[0]["valid_accuracy"] == classifier.accuracy(data)


@pytest.mark.parametrize("like_length", [False, True])
def test_without_validation_texts_a_share_is_held_out(encoder, data, monkeypatch, like_length):
    batches = []

    def watched(model, texts, token_dropout):
        batches.append(texts)
        return raw_embeddings(model, texts, token_dropout)

    monkeypatch.setattr(training, "raw_embeddings", watched)
    options = SupervisedOptions(epochs=1, batch_size=8, like_length=like_length)
    trained(encoder(), data, None, options)
    train, valid = data.split(0.1, 0)
    seen = [text for batch in batches for text in batch]
    assert sorted(seen) == sorted(train.texts)
    assert not set(seen) & set(valid.texts)
    lengths = sorted([len(text) for text in batch] for batch in batches)
    assert all(max(first) <= min(second) for first, second in pairwise(lengths)) == like_length


def test_runs_are_averaged_and_each_holds_out_another_part(encoder, data):
    options = replace(OPTIONS, runs=3, head="probe", seed=4)
    classifier, history = trained(encoder(), data, None, options)
    seeds = [options.seed_of(run) for run in range(3)]
    alone = [trained(encoder(), data, None, replace(OPTIONS, head="probe", seed=seed)) for seed in seeds]
    assert len({tuple(data.split(0.1, seed)[1].texts) for seed in seeds}) == 3
    assert [{**entry, "run": 1} for entry in history] == [entry for _, entries in alone for entry in entries]
    assert [entry["run"] for entry in history] == [1] * 4 + [2] * 4 + [3] * 4
    of_runs = history[:4], history[4:8], history[8:]
    assert training.best_epochs(history) == [max(run, key=lambda entry: entry["valid_accuracy"]) for run in of_runs]
    for name, tensor in weights(classifier).items():
        mean = torch.stack([weights(one)[name].double() for one, _ in alone]).mean(0)
        torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)


class Dropped(torch.nn.Dropout):
    def forward(self, features):
        return {**features, "sentence_embedding": super().forward(features["sentence_embedding"])}


@pytest.mark.parametrize(("stop", "dropout"), [(3, 0), (4, 0.5), (11, 0.5)])
def test_interrupted_runs_go_on_where_they_stopped(encoder, data, tmp_path, monkeypatch, stop, dropout):
    def begin():
        return SentenceTransformer(modules=[encoder()[0], Dropped(dropout)], device="cpu")

    options = replace(OPTIONS, runs=3, head="probe")
    whole, whole_history = trained(begin(), data, None, options)
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
        trained(model, data, None, options, Checkpoint(tmp_path / "model", "run"))
    again, history = trained(model, data, None, options, Checkpoint(tmp_path / "model", "run"))
    assert len(saved) == 12
    assert history == whole_history
    assert same(weights(again), weights(whole))


def test_a_training_that_diverges_is_stopped(encoder, data):
    options = SupervisedOptions(epochs=1, batch_size=8, learning_rate=1e30, head="random")
    message = "the training diverged at step 2 (nan); lower --learning-rate"
    assert error(trained, encoder(), data, data, options) == message
    options = replace(options, batch_size=40)
    assert error(trained, encoder(), data, data, options) == "the model: returned NaN or infinity for the text 'so joy'"


def test_a_new_encoder(tokenizer, tmp_path, sentences):
    path = str(tmp_path / "tokenizer.json")
    tokenizer.save(path)
    sizes = {"device": "cpu", "dimension": 8, "steps": 1, "rank": 2, "positions": "absolute"}
    model, again, other = (new_encoder(None, [], path, seed=seed, **sizes) for seed in (5, 5, 6))
    assert model[0].positions == "absolute"
    assert model[0].backend_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert same(state(again), state(model))
    assert not same(state(other), state(model))
    learned = new_encoder(None, sentences, vocabulary_size=60, device="cpu", dimension=8)
    assert learned[0].backend_tokenizer.get_vocab_size() == 60
    # By default as many entries and the seed that train has.
    defaults = [signature(new_encoder).parameters[name].default for name in ("vocabulary_size", "seed")]
    assert defaults == [TrainingJob.vocabulary_size, SupervisedOptions.seed]
    for start in (None, "default"):
        assert error(new_encoder, start, sentences, device="warp").startswith("device 'warp' cannot be used here (")


def test_the_penalty_is_told_apart_from_the_cross_entropy(data):
    of_penalty = partial(new_encoder, None, data.texts, encoder="san", dimension=8, heads=3)
    without, with_penalty = (
        trained(of_penalty(penalty=penalty), data, data, SupervisedOptions(1, 40))[1][0] for penalty in (0.0, 2.0)
    )
    assert without["train_loss"] == without["cross_entropy"] == pytest.approx(with_penalty["cross_entropy"])
    assert with_penalty["train_loss"] > with_penalty["cross_entropy"] + 1


def test_words_are_read_if_they_make_held_out_labels_likelier(encoder):
    options = SupervisedOptions(epochs=1, batch_size=50, learning_rate=1e-6, head="random")
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 200).tolist()
    # Numbers in no order, which their digits' embeddings cannot tell apart.
    words = random.permutation(range(100, 140)).reshape(2, 20)
    data = Labelled(labels, [f"{random.choice(words[label])} {random.integers(1000)}" for label in labels])
    for valid in (None, data):
        model, _ = trained(encoder(), data, valid, options, words=True)
        assert model.accuracy(data) > 0.95
        assert model.head.words is not None
    assert trained(encoder(), data, None, options)[0].head.words is None
    shuffled = Labelled(labels[::-1], data.texts)
    assert trained(encoder(), shuffled, None, options, words=True)[0].head.words is None


@pytest.mark.parametrize("class_weight", [None, {"class 0": 5.0}])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_probe_is_logistic_regression_on_standardised_embeddings(tiny_model, sentences, classes, class_weight):
    """The head reads embeddings before they are normalised."""
    texts = [f"{sentence} {number}" for number in range(6) for sentence in sentences]
    data = Labelled([f"class {sentences.index(text.rsplit(' ', 1)[0]) % classes}" for text in texts], texts)
    bare = SentenceTransformer(modules=[copy.deepcopy(tiny_model[0])], device="cpu").encode(texts)
    assert not np.allclose(np.linalg.norm(bare, axis=1), 1)
    options = SupervisedOptions(epochs=1, learning_rate=1e-12, head="probe")
    classifier, _ = trained(copy.deepcopy(tiny_model), data, data, options, class_weight=class_weight)
    X = StandardScaler().fit_transform(bare.astype(np.float64))
    regression = LogisticRegression(C=training.PROBE_DEVIATION**2, class_weight=class_weight, max_iter=1000)
    expected = regression.fit(X, data.labels).predict_proba(X)
    assert classifier.head.probabilities(classifier.logits(texts)) == pytest.approx(expected, abs=1e-3)
    # A text that cannot be read has the weighted shares of the classes.
    numbers = [data.labels.count(label) * (class_weight or {}).get(label, 1) for label in classifier.head.labels]
    assert classifier.head.neutral == pytest.approx(np.log((np.array(numbers) + 0.5) / (48 + 0.5)))


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("class_weight", [None, {0: 4.0}])
def test_words_are_those_of_the_encoder_before_and_the_factors_the_likeliest(encoder, class_weight, runs):
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 300).tolist()
    telling = ["xz"[label if random.random() < 0.9 else 1 - label] + str(random.integers(20)) for label in labels]
    starts = random.choice(["a joy", "the dull film", "so good"], 300)
    data = Labelled(
        labels, [f"{start} {word} {n}" for n, (start, word) in enumerate(zip(starts, telling, strict=True))]
    )
    options = SupervisedOptions(epochs=1, batch_size=50, learning_rate=0.01, head="random", runs=runs)
    model = encoder()
    before = Model(model).raw(data.texts)
    classifier, _ = trained(model, data, None, options, words=True, class_weight=class_weight)
    of_classes = class_weights(class_weight, data, [0, 1])
    fitted = fitted_head(before, data, [0, 1], of_classes).words
    found = classifier.head.words
    assert found.vocabulary.words == fitted.vocabulary.words
    factor = np.linalg.norm(found.weight) / np.linalg.norm(fitted.weight)
    assert found.weight == pytest.approx(factor * fitted.weight, abs=2e-3)
    if runs == 1:
        learned, held_out = data.split(options.valid_share, options.seed)
        of_learned = before[[data.texts.index(text) for text in learned.texts]]
        of_words = fitted_head(of_learned, learned, [0, 1], of_classes).words
        meaning = replace(classifier.head, words=None).logits(classifier.encoder.raw(held_out.texts), held_out.texts)

        def loss(of_meaning, of_word):
            logits = of_meaning * meaning + of_word * factor * of_words.logits(held_out.texts)
            return log_loss(held_out.labels, softmax(logits, axis=1))

        # With class weights, the factor of the meaning is as small as it may be.
        others = [(1, 0.9), (1, 1.1), *([(0.9, 1), (1.1, 1)] if class_weight is None else [])]
        assert all(loss(*factors) > loss(1, 1) - 1e-6 for factors in others)


@pytest.mark.parametrize("store", [None, "int8", "float32"])
def test_a_trained_encoder_knows_all_its_texts_and_how_it_is_stored(encoder, data, store):
    model, valid = encoder(), Labelled(["+"], ["a text of its own"])
    model[0].labelled_texts = earlier = hashes_of(["an earlier text"])
    model[0].store = "int8"
    options = SupervisedOptions(epochs=1, batch_size=40, learning_rate=1e-2)
    trained(model, data, valid, options, store=store)
    assert (model[0].labelled_texts == joined(earlier, hashes_of([*data.texts, *valid.texts]))).all()
    assert model[0].store == (store or "int8")
    assert (as_int8(model[0].embedding.weight.detach()) is not None) == (store == "int8")
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", ["contextualizer", "mean"])
def test_the_table_is_cut_to_the_texts_and_put_back(tokenizer, sentences, name):
    encoder = untrained(name, tokenizer, 8)
    before, embeddings = encoder[0].embedding.weight.clone(), encoder.encode(sentences)
    used = np.unique(encoder[0].text_tokenizer(sentences[:2])[0])
    # It is put back after an error, too.
    with suppress(KeyboardInterrupt), compact_tables(encoder, sentences[:2]):
        assert encoder[0].embedding.weight.shape == (len(used), 8)
        assert encoder.encode(sentences[:2]) == pytest.approx(embeddings[:2], abs=1e-6)
        with torch.no_grad():
            encoder[0].embedding.weight += 1
        raise KeyboardInterrupt
    changed = (encoder[0].embedding.weight != before).any(1).nonzero().flatten().tolist()
    assert changed == used.tolist()
    torch.testing.assert_close(encoder[0].embedding.weight[used], before[used] + 1)
    assert encoder[0].text_tokenizer(sentences)[0].max() > len(used)
    # A context drawn by ids, and texts without a token, keep the table.
    by_ids = untrained("contextualizer", tokenizer, 8, initial_context="uniform")
    with compact_tables(by_ids, ["the cat"]), compact_tables(encoder, [""]):
        assert len(by_ids[0].embedding.weight) == len(encoder[0].embedding.weight) == tokenizer.get_vocab_size()


def test_a_training_is_known_by_all_that_its_model_depends_on(tmp_path, tiny_model_path, tokenizer, monkeypatch):
    asked = []
    monkeypatch.setattr(job, "finished", lambda _, it, **__: asked.append(it) or {"result": {}})
    first, second = tmp_path / "first.tsv", tmp_path / "second.tsv"
    first.write_text("a\tone\nb\ttwo\n")
    second.write_text("a\tone\nb\tthree\n")
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    def ask(file=first, options=OPTIONS, start=str(tiny_model_path), **settings):
        job.train(file, tmp_path / "model", options, start=start, **settings)

    ask()
    for name, value in other_values(SupervisedOptions):
        ask(options=replace(OPTIONS, **{name: value}))
    for name, value in other_values(TrainingJob):
        if name not in ("overwrite", "skip_empty", "frozen"):
            ask(**{name: value})
    others = {"file": (second,), "valid": (str(first), str(second)), "test": (str(first),), "options": (None,)}
    others |= {"class_weight": ("balanced", {"a": 2.0}), "start": ("default", "scratch")}
    for name, values in others.items():
        for value in values:
            ask(**{name: value})
    ask(start="scratch", tokenizer=str(tmp_path / "tokenizer.json"))
    ask(start="scratch", architecture={"dimension": 8})
    ask(start=None, encoder="mean")
    assert len(set(asked)) == len(asked)
    ask(shutil.copy(first, tmp_path / "copy.tsv"))
    assert asked[-1] == asked[0]
