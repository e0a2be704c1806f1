"""Tied steps, attention by matrices, contexts from step to step, layers to time, and training on masked words."""

import gzip
import json

import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from torch.nn import functional as F

from ctx_embed.classify.head import Head
from ctx_embed.classify.labelled import Labelled
from ctx_embed.classify.predictor import Predictor
from ctx_embed.loading import load
from ctx_embed.model import Model
from ctx_embed.modules import Contextualizer
from ctx_embed.second_order import Steps, direct
from ctx_embed.training.run import Checkpoint
from papers import RunOptions, find_experiment, masked_words, reproduce
from papers.batch_times import TransformerMean
from papers.classifier_cells import initial_encoder, split, trained
from papers.complexity import LAYERS, fitted_exponent
from papers.pretraining import gain
from papers.report import as_markdown
from papers.runner import chosen
from papers.settling import bounds, followed
from papers.variants import MATRICES, TIED, tie_steps, use_matrices
from tests.helpers.errors import error

TEXTS = ["a dull film without one good idea", "the film was a joy from the first scene", "good"]


def module_of(tokenizer, **options) -> Contextualizer:
    torch.manual_seed(0)
    weights = torch.randn(tokenizer.get_vocab_size(), 8)
    return Contextualizer(tokenizer, 8, weights=weights, **options)


def embedded(module: Contextualizer) -> torch.Tensor:
    ids, lengths = module.text_tokenizer(TEXTS)
    return module.embed(torch.from_numpy(ids).long(), lengths.tolist())


def followed_contexts(module: Contextualizer) -> torch.Tensor:
    """Return the context of each text after each step, (1 + steps, texts, m)."""
    ids, lengths = module.text_tokenizer(TEXTS)
    ids = torch.from_numpy(ids).long()
    return module.attention(module.embedding(ids), ids, torch.tensor([0, *lengths]).cumsum(0)).detach()


def test_tied_steps_train_as_one_step_that_is_read_again(tokenizer):
    """Adam over tied parameters does the same as Adam over a single step's, expanded to K."""
    tied, untied = (module_of(tokenizer, steps=4, rank=3) for _ in range(2))
    with torch.no_grad():
        tie_steps(tied, True)
    names = Steps._fields
    shared = {name: torch.nn.Parameter(getattr(tied.attention, name).detach()[:1].clone()) for name in names}
    ids, lengths = tied.text_tokenizer(TEXTS)
    ids, offsets = torch.from_numpy(ids).long(), torch.tensor([0, *lengths]).cumsum(0)
    first, second = torch.optim.Adam(tied.attention.parameters(), lr=0.01), torch.optim.Adam(shared.values(), lr=0.01)
    aim = torch.randn(3, 8)
    for _ in range(5):
        steps = Steps(*(shared[name].expand(4, *shared[name].shape[1:]) for name in names))
        again = direct(untied.embedding(ids).detach(), offsets, torch.ones(3, 8), steps)[-1]
        for optimizer, found in ((first, embedded(tied)), (second, again)):
            optimizer.zero_grad()
            F.mse_loss(found, aim).backward()
            optimizer.step()
    for name in names:
        values = getattr(tied.attention, name)
        assert (values == values[:1]).all()
        torch.testing.assert_close(values[:1], shared[name], rtol=1e-4, atol=1e-5)
    assert (tied.attention.U[0] != untied.attention.U[0]).all()


def test_factors_are_a_tensor_of_low_rank_and_heads_matrices(tokenizer):
    """The full tensor sum_r W_jr U_r V_r^T attends as the factors do."""
    factors, matrices = module_of(tokenizer, steps=2, rank=3), module_of(tokenizer, steps=2, rank=3)
    with torch.no_grad():
        use_matrices(matrices, 8)
        U, V, W = factors.attention.U, factors.attention.V, factors.attention.W
        matrices.attention.A.copy_(torch.einsum("kjr,krp,krq->kjpq", W, U, V))
        torch.testing.assert_close(embedded(matrices), embedded(factors), rtol=1e-4, atol=1e-5)
    # Two heads over eight features, token by token: a head weighs its features alike.
    module = module_of(tokenizer, steps=1, rank=1)
    with torch.no_grad():
        use_matrices(module, 2)
        module.attention.b.copy_(torch.tensor([[0.5, -1.0]]))
        for text, found in zip(TEXTS, embedded(module), strict=True):
            total = torch.zeros(8)
            for x in module.embedding(torch.from_numpy(module.text_tokenizer([text])[0]).long()):
                one, two = (x @ module.attention.A[0] @ torch.ones(8) + module.attention.b[0]).tolist()
                total += torch.tensor([one] * 4 + [two] * 4) * x
            torch.testing.assert_close(found, 1 + F.layer_norm(total, (8,), eps=1e-12), rtol=1e-4, atol=1e-5)


def test_matrices_and_factors_have_equally_many_parameters(workplace):
    for cell in find_experiment("figure2").cells:
        attention = initial_encoder(cell.settings, workplace, 0)[0].attention
        bilinear = [attention.A] if cell.row != "vector" else [attention.U, attention.V, attention.W]
        assert sum(part.numel() for part in bilinear) / len(bilinear[0]) == pytest.approx(32**3, rel=0.005)
        assert (MATRICES in cell.settings.get("initial", {})) == (cell.row != "vector")


@pytest.mark.parametrize("seed", range(5))
def test_no_step_is_longer_than_its_bound(tokenizer, seed):
    """|z^k| <= sqrt(m) max|gain| + |bias|; it turns the context by an angle whose sine is at most |z^k| / |c^(k-1)|."""
    module = module_of(tokenizer, steps=6, rank=3)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.attention.parameters():
            parameter.copy_(3 * torch.randn(parameter.shape, generator=generator))
    contexts = followed_contexts(module)
    z = contexts.diff(dim=0).norm(dim=2)
    assert (z <= bounds(module.attention)[:, None] * (1 + 1e-5)).all()
    sine = (z / contexts[:-1].norm(dim=2)).clamp(max=1)
    cosine = F.cosine_similarity(contexts[1:], contexts[:-1], dim=2)
    assert (cosine >= (1 - sine**2).sqrt() - 1e-5)[sine < 1].all()
    with torch.no_grad():
        # Equal gains reach the bound, whatever the text.
        module.attention.gain.fill_(2)
        module.attention.bias.zero_()
    z = followed_contexts(module).diff(dim=0).norm(dim=2)
    torch.testing.assert_close(z, bounds(module.attention)[:, None].expand_as(z), rtol=1e-4, atol=0)


def test_what_is_said_of_each_step(tokenizer):
    module = module_of(tokenizer, steps=5, rank=3)
    weight, bias = torch.randn(2, module.dimension), torch.randn(2)
    model = Model(SentenceTransformer(modules=[module], device="cpu"))
    classifier = Predictor(model, Head(weight.numpy(), bias.numpy(), ["0", "1"]))
    said = followed(classifier, Labelled(["0", "1", "1"], TEXTS))
    c = followed_contexts(module).double()
    z, by_step = c.diff(dim=0), (c[1:] @ weight.T.double() + bias).argmax(2).numpy()
    close = {"abs": 1e-4}
    assert said["length"] == pytest.approx(z.norm(dim=2).mean(1).tolist(), **close)
    assert said["cosine"] == pytest.approx(F.cosine_similarity(c[1:], c[:-1], dim=2).mean(1).tolist(), **close)
    assert said["turn"][0] == pytest.approx(1, **close)
    assert said["turn"][1:] == pytest.approx(F.cosine_similarity(z[1:], z[:-1], dim=2).mean(1).tolist(), **close)
    assert said["accuracy_at"] == pytest.approx((100 * (by_step == [0, 1, 1]).mean(1)).tolist())
    assert said["agreement"] == pytest.approx((100 * (by_step == by_step[-1]).mean(1)).tolist())
    assert said["agreement"][-1] == said["certain"][-1] == 100
    assert all(sure <= same + 1e-9 for sure, same in zip(said["certain"], said["agreement"], strict=True))


def test_the_last_context_is_what_the_classifier_reads(workplace, tmp_path):
    options = RunOptions(quick=True, patterns=("tied_k-3",), folds=1)
    results = reproduce(find_experiment("settling"), tmp_path, workplace, options, lambda line: None)
    (outcome,) = (outcome for outcome in results.outcomes if outcome.parts)
    assert outcome.figures["accuracy_at"][-1] == pytest.approx(outcome.figures["accuracy"])
    assert len(outcome.figures["length"]) == 3
    (untied,) = chosen(find_experiment("settling"), ["untied_k-3"])
    train, test, fold = split(outcome.cell.settings, "fold 1", workplace)
    assert not {*train.texts} & {*test.texts}
    assert not {*test.texts} & {*split(outcome.cell.settings, "fold 2", workplace)[1].texts}
    _, figures = trained(untied.settings | {"training": outcome.cell.settings["training"]}, workplace, train, fold)
    assert figures["parameters"] == 3 * outcome.figures["parameters"]
    assert outcome.cell.settings["initial"] == {TIED: True}


def test_the_exponent_of_a_power_law():
    sizes = [64, 128, 256, 512, 1024]
    for exponent, factor in ((0.1, 1e-3), (1, 2.0), (3, 1e3)):
        assert fitted_exponent(sizes, [factor * size**exponent for size in sizes]) == pytest.approx(exponent, abs=1e-6)
    # Only the largest sizes count.
    assert fitted_exponent([1, 10, 20, 40], [99, 10, 40, 160]) == pytest.approx(2)
    # The least squares through log 1, 2, 3 and log 1, 4, 4 by hand: ln 4 / 2 ln 4.
    assert fitted_exponent([1, 4, 16], [1, 4, 4]) == pytest.approx(0.5)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_gives_as_many_features(layer):
    given = LAYERS[layer](torch.randn(24, 16), 4)()
    assert given.shape[-2:] == {"convolution": (16, 24), "Contextualizer": (1, 16)}.get(layer, (24, 16))
    assert given.isfinite().all()


@pytest.fixture
def pretrained(tokenizer, tmp_path):
    """Return a function that trains a model on two files into a folder of this name, and returns it."""
    own = Tokenizer.from_str(tokenizer.to_str())
    own.add_special_tokens([masked_words.MASK])
    own.save(str(tmp_path / "masked.json"))
    files = [tmp_path / "plain.txt", tmp_path / "packed.txt.gz"]
    files[0].write_text("".join(f"the film was a joy {n}\n\n" for n in range(500)))
    files[1].write_bytes(gzip.compress(b"".join(b"a dull film without one good idea %d\n" % n for n in range(500))))

    def train(name, sentences=800, tokenizer=tmp_path / "masked.json"):
        masked_words.pretrain(tmp_path / name, files, sentences, tokenizer=tokenizer)
        return load(str(tmp_path / name))[0].state_dict()

    return train


def test_the_loss_falls_and_an_interrupted_run_continues(pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(masked_words, "BATCH", 16)
    monkeypatch.setattr(masked_words, "STORED_EVERY", 20)
    whole = pretrained("whole")
    record = json.loads((tmp_path / "whole" / masked_words.RECORD).read_text())
    assert record["losses"][-1] < 0.8 * record["losses"][0]
    assert record["sentences"] == 800
    save = Checkpoint.save

    def interrupted(checkpoint, state):
        save(checkpoint, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pretrained("resumed")
    monkeypatch.setattr(Checkpoint, "save", save)
    torch.testing.assert_close(pretrained("resumed"), whole, rtol=0, atol=0)
    again = json.loads((tmp_path / "resumed" / masked_words.RECORD).read_text())
    assert again["losses"] == record["losses"]


def test_the_table_reads_the_model(pretrained, workplace, tmp_path):
    experiment = find_experiment("pretraining")
    assert reproduce(experiment, tmp_path / "cells", workplace, RunOptions(patterns=("pre-trained_*",))).files
    assert list((tmp_path / "cells").glob("*.json")) == []
    pretrained("model")
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


def test_what_pretraining_refuses_and_gains(pretrained, vocabulary):
    assert error(pretrained, "out", 2000) == "sentences must be at most the 1,000 of the files, got 2,000"
    assert error(pretrained, "out", 100, vocabulary).startswith("the vocabulary must have an entry [MASK]")
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


def test_the_timed_transformer_does_not_see_padding():
    model = TransformerMean(20, 8, 1, 16).eval()
    (alone,) = model({"input_ids": torch.tensor([[3, 4]]), "attention_mask": torch.ones(1, 2)}).values()
    ids, mask = torch.tensor([[3, 4, 9, 9], [5, 6, 7, 8]]), torch.tensor([[1, 1, 0, 0], [1] * 4])
    (both,) = model({"input_ids": ids, "attention_mask": mask}).values()
    torch.testing.assert_close(both[:1], alone)
