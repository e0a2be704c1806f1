"""The computation of cells that train a classifier: one outer fold or test part at a time, and a batch's time."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Dropout, Normalize
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from torch import nn

from ctx_embed.classify.labelled import Labelled
from ctx_embed.classify.predictor import Predictor
from ctx_embed.errors import missing_extra
from ctx_embed.eval.scoring.probes import check_classes, folds_of
from ctx_embed.modules.token_encoder import DRAWN_DEVIATION, TokenEncoder
from ctx_embed.systems import parameter_count, system
from ctx_embed.training.options import FINE_TUNING, SupervisedOptions
from ctx_embed.training.supervised.train import adam, best_epochs, new_encoder, train_classifier
from papers.experiment import FOLDS, Figures, Settings
from papers.inputs import Workplace
from papers.variants import REDRAWN, TIED, VARIANTS

UNKNOWN_WORD = "[UNK]"
# Words that occur fewer times are unknown, as in LAMA's paper.
LEAST = 5


def words_and_vectors(texts: Sequence[str], dimension: int, seed: int) -> tuple[Tokenizer, NDArray[np.float32]]:
    """Return a tokenizer of whole words, in lower case and with punctuation apart, and word2vec's vectors of them.

    Words that occur fewer than five times in the training texts are unknown, with zeros as their vector. word2vec runs
    on one thread to be reproducible.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise missing_extra("word vectors", "papers") from None
    normalizer, splitter = BertNormalizer(), BertPreTokenizer()
    read = [[word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))] for text in texts]
    model = Word2Vec(read, vector_size=dimension, min_count=min(LEAST, len(texts)), seed=seed, workers=1)
    words = {UNKNOWN_WORD: 0}
    vectors = [np.zeros(dimension, np.float32)]
    for word in model.wv.index_to_key:
        if word not in words:
            words[word] = len(words)
            vectors.append(model.wv[word])
    tokenizer = Tokenizer(WordLevel(words, unk_token=UNKNOWN_WORD))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    return tokenizer, np.stack(vectors)


SPEED = "speed"
TEST = "test"
# The group in a cell's settings that holds :func:`initial_values`.
INITIAL = "initial"
TOKEN_DEVIATION = "token_deviation"
# Settings of a classifier's input and head; None or absent is the default. ``tokens``: number of tokens to read of a
# text (default: all). ``words``: read whole words with word2vec's vectors of this many features (default: word pieces
# with random vectors). ``mlp``: units of a hidden layer in the head (default: a linear head). ``dropout``: the share of
# these units that a training step leaves out.
TOKENS, WORDS, MLP, DROPOUT = "tokens", "words", "mlp", "dropout"
INPUTS = (TOKENS, WORDS, MLP, DROPOUT)
WITHOUT_TEST_PART = ("YELP", "AMAZON")
# Momentum and weight decay of SGD, which then takes Adam's place.
SGD = "sgd"
# Numbers of heads to try; the validation accuracy chooses one of them.
GRID = "grid"
# How the tables fine-tune a trained model.
ONE_RUN = replace(FINE_TUNING, runs=1, epochs=8)


def settings_of(task: str, encoder: str, training: Mapping[str, Any] | None = None, **architecture: Any) -> Settings:
    """Return the settings of a cell that trains a random system as the paper does; ``training`` overrides."""
    return {
        "task": task,
        "encoder": encoder,
        "architecture": {"dimension": 128, **architecture},
        "training": {**training_settings(SupervisedOptions()), "head": system(encoder).first_head, **(training or {})},
    }


def settings_from(task: str, start: str) -> Settings:
    """Return the settings of a cell that fine-tunes a trained model, as :data:`ONE_RUN`."""
    return {"task": task, "start": start, "training": training_settings(ONE_RUN)}


def training_settings(options: SupervisedOptions) -> dict[str, Any]:
    """Return the options of a paper's training as JSON values: all but ``seed``, ``like_length`` and ``runs``."""
    return {name: value for name, value in vars(options).items() if name not in ("seed", "like_length", "runs")}


def quick_training(settings: Settings) -> Settings:
    """Return the settings for about 240 texts of at most 32 tokens and two epochs."""
    return {**settings, "rows": 240, "tokens": 32, "training": {**settings["training"], "epochs": 2}}


def fold_parts(settings: Settings, folds: int) -> list[str]:
    """Return the parts of a cross-validated cell: a batch's time if requested, and the folds."""
    return [*([SPEED] if settings.get("speed") else []), *(f"fold {number}" for number in range(1, folds + 1))]


def single_part(settings: Settings, folds: int) -> list[str]:
    """Return the only part of a cell whose data have a test part; none while its model is not named."""
    return [] if settings.get("start", TEST) is None else [TEST]


def test_or_first_fold(settings: Settings, folds: int) -> list[str]:
    """Return the only part of a cell: the test part of its data, or the first fold of data without one."""
    parts = single_part(settings, folds)
    return ["fold 1"] if parts and settings["task"] in WITHOUT_TEST_PART else parts


def initial_encoder(
    settings: Settings, workplace: Workplace, seed: int, texts: Sequence[str] = ()
) -> SentenceTransformer:
    """Return the encoder that a cell's training starts from; ``texts`` are its training texts, for word vectors."""
    start = settings.get("start")
    if start:
        return new_encoder(start, [], device=workplace.device)
    module: Any
    if dimension := settings.get(WORDS):
        tokenizer, vectors = words_and_vectors(texts, dimension, workplace.seed)
        torch.manual_seed(seed)
        module = system(settings["encoder"])(tokenizer, weights=vectors, **settings["architecture"])
    else:
        made = new_encoder(
            None,
            [],
            str(workplace.vocabulary),
            seed=seed,
            device=workplace.device,
            encoder=settings["encoder"],
            **settings["architecture"],
        )
        module = made[0]
    modules = [module]
    if units := settings.get(MLP):
        modules.append(Dense(module.get_embedding_dimension(), units, activation_function=nn.ReLU()))
        modules += [Dropout(rate)] if (rate := settings.get(DROPOUT)) else []
    encoder = SentenceTransformer(modules=[*modules, Normalize()], device=workplace.device)
    with torch.no_grad():
        for name, value in settings.get(INITIAL, {}).items():
            if name == TOKEN_DEVIATION:
                module.embedding.weight.mul_(value / DRAWN_DEVIATION)
            elif name in VARIANTS:
                VARIANTS[name](module, value)
            else:
                getattr(module.attention, name.removeprefix("initial_")).fill_(float(value))
    return encoder


def initial_values(settings: Settings) -> set[str]:
    """Return the names of the initial values that a cell may change.

    They are the standard deviation of the token table; for a Contextualizer the value of all b and of the layer
    normalisations' gains, and whether its steps are tied; and whether a uniform first context is redrawn.
    """
    names = {TOKEN_DEVIATION}
    if settings["encoder"] == "contextualizer":
        names |= {"initial_b", "initial_gain", TIED}
    if settings["architecture"].get("initial_context") == "uniform":
        names.add(REDRAWN)
    return names


def rows_of(labelled: Labelled, places: Any) -> Labelled:
    """Return the rows at ``places``."""
    return Labelled([labelled.labels[place] for place in places], [labelled.texts[place] for place in places])


def train_and_test(settings: Settings, part: str, workplace: Workplace) -> Figures:
    """Train on the training part of a fold or task and score its test part; or measure a batch's time.

    The part is ``speed``, ``fold N`` (from 1) or ``test``; each fold has other initial weights. Return ``accuracy`` in
    percent, ``valid_accuracy``, the ``best_epoch``, the training ``loss`` (cross-entropy) and ``valid`` accuracy of
    each epoch, and the number of ``parameters`` excluding the token table; or the result of :func:`batch_times`.
    """
    if part == SPEED:
        return batch_times(settings, workplace)
    train, test, fold = split(settings, part, workplace)
    classifier, figures = trained(settings, workplace, train, fold)
    return {"accuracy": 100 * classifier.accuracy(test), **figures}


def trained(settings: Settings, workplace: Workplace, train: Labelled, fold: int = 0) -> tuple[Predictor, Figures]:
    """Return the classifier that a cell's settings train on these texts, and the metrics of its training."""
    if counts := settings.get(GRID):
        by_heads = []
        for count in counts:
            cell = {**settings, GRID: None, "architecture": {**settings["architecture"], "heads": count}}
            by_heads.append((count, *trained(cell, workplace, train, fold)))
        heads, classifier, figures = max(by_heads, key=lambda found: found[2]["valid_accuracy"])
        return classifier, {**figures, "heads": heads}
    encoder = initial_encoder(settings, workplace, workplace.seed + fold, train.texts)
    options = SupervisedOptions(**settings["training"], seed=workplace.seed)
    optimizer = partial(torch.optim.SGD, **settings[SGD]) if settings.get(SGD) else adam
    classifier, history = train_classifier(encoder, train, None, options, progress=False, optimizer=optimizer)
    (best,) = best_epochs(history)
    return classifier, {
        "valid_accuracy": 100 * best["valid_accuracy"],
        "best_epoch": best["epoch"],
        "loss": [epoch["cross_entropy"] for epoch in history],
        "valid": [100 * epoch["valid_accuracy"] for epoch in history],
        "parameters": _parameters(encoder),
    }


def _parameters(encoder: SentenceTransformer) -> int | None:
    return parameter_count(encoder[0]) if isinstance(encoder[0], TokenEncoder) else None


def split(settings: Settings, part: str, workplace: Workplace) -> tuple[Labelled, Labelled, int]:
    """Return the training and test texts of a part, and the fold's number from 0."""
    task, sample = settings["task"], (settings.get("tokens"), settings.get("rows"))
    if part == TEST:
        return workplace.labelled(task, "train", *sample), workplace.labelled(task, "test", *sample), 0
    rows = workplace.labelled(task, task, *sample)
    check_classes(rows.labels, FOLDS)
    classes = np.unique(np.asarray(rows.labels), return_inverse=True)[1]
    fold = int(part.split()[1]) - 1
    train, test = folds_of(np.arange(len(classes)), classes, FOLDS, workplace.seed)[fold]
    return rows_of(rows, train), rows_of(rows, test), fold


def batch_times(settings: Settings, workplace: Workplace) -> Figures:
    """Return the median milliseconds of processor time for a batch of tokenized texts: forward pass (``ms``), and
    forward and backward pass (``training_ms``)."""
    task, rows = settings["task"], settings.get("rows")
    texts = workplace.labelled(task, task, settings.get("tokens"), rows).texts
    batch = np.random.default_rng(workplace.seed).permutation(len(texts))[: settings["training"]["batch_size"]]
    encoder = initial_encoder(settings, replace(workplace, device="cpu"), workplace.seed, texts)
    module: Any = encoder[0]
    features = module.preprocess([texts[place] for place in batch])
    runs = 5 if rows else 30

    def embed() -> torch.Tensor:
        embeddings: torch.Tensor = module(dict(features))["sentence_embedding"]
        return embeddings

    module.eval()
    with torch.inference_mode():
        forwards = _median_ms(embed, runs)
    module.train()
    return {
        "ms": forwards,
        "training_ms": _median_ms(lambda: embed().sum().backward(), runs),
        "parameters": _parameters(encoder),
    }


def _median_ms(run: Callable[[], Any], runs: int) -> float:
    seconds = []
    for number in range(runs + 3):
        start = time.process_time()
        run()
        if number >= 3:
            seconds.append(time.process_time() - start)
    return 1e3 * statistics.median(seconds)


def accuracy_summary(settings: Settings, parts: Mapping[str, Figures]) -> Figures:
    """Return the mean and standard deviation of the accuracy over the parts that have it, and other metrics."""
    accuracies = [part["accuracy"] for part in parts.values() if "accuracy" in part]
    figures: Figures = {name: part[name] for part in parts.values() for name in ("ms", "training_ms") if name in part}
    figures["parameters"] = next(part["parameters"] for part in parts.values())
    if heads := [part["heads"] for part in parts.values() if "heads" in part]:
        figures["heads"] = heads[0]
    if accuracies:
        figures["accuracy"] = statistics.mean(accuracies)
        figures["tests"] = len(accuracies)
        figures["seconds_each"] = statistics.mean(part["seconds"] for part in parts.values() if "accuracy" in part)
    if len(accuracies) > 1:
        figures["std"] = statistics.stdev(accuracies)
        figures["standard_error"] = figures["std"] / len(accuracies) ** 0.5
    return figures
