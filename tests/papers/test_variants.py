"""Tied steps, attention by matrices, and what is said of the contexts from step to step."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch.nn import functional as F

from ctx_embed.classify.labelled import Labelled
from ctx_embed.modules import Contextualizer
from ctx_embed.second_order import Steps, direct
from ctx_embed.training.supervised.train import ClassifierNetwork
from papers import find_experiment, reproduce
from papers.classifier_cells import initial_encoder, split, trained
from papers.runner import RunOptions, chosen
from papers.settling import bounds, followed
from papers.variants import MATRICES, TIED, tie_steps, use_matrices

TEXTS = ["a dull film without one good idea", "the film was a joy from the first scene", "good"]


def module_of(tokenizer, **options) -> Contextualizer:
    torch.manual_seed(0)
    weights = torch.randn(tokenizer.get_vocab_size(), 8)
    return Contextualizer(tokenizer, 8, weights=weights, **options)


def embedded(module: Contextualizer) -> torch.Tensor:
    ids, lengths = module.text_tokenizer(TEXTS)
    return module.embed(torch.from_numpy(ids).long(), lengths.tolist())


def test_tied_steps_train_as_one_step_that_is_read_again(tokenizer):
    """Adam over tied parameters does the same as Adam over a single step's, expanded to K."""
    tied, untied = module_of(tokenizer, steps=4, rank=3), module_of(tokenizer, steps=4, rank=3)
    with torch.no_grad():
        tie_steps(tied, True)
    names = Steps._fields
    shared = {name: torch.nn.Parameter(getattr(tied.attention, name).detach()[:1].clone()) for name in names}
    ids, lengths = tied.text_tokenizer(TEXTS)
    ids, offsets = torch.from_numpy(ids).long(), torch.tensor([0, *lengths]).cumsum(0)
    first, second = torch.optim.Adam(tied.attention.parameters(), lr=0.01), torch.optim.Adam(shared.values(), lr=0.01)
    aim = torch.randn(3, 8)
    for _ in range(5):
        first.zero_grad()
        second.zero_grad()
        F.mse_loss(embedded(tied), aim).backward()
        x = untied.embedding(ids).detach()
        steps = Steps(*(shared[name].expand(4, *shared[name].shape[1:]) for name in names))
        F.mse_loss(direct(x, offsets, torch.ones(3, 8), steps)[-1], aim).backward()
        first.step()
        second.step()
    for name in names:
        values = getattr(tied.attention, name)
        assert (values == values[:1]).all()
        torch.testing.assert_close(values[:1], shared[name], rtol=1e-4, atol=1e-5)
    assert (tied.attention.U[0] != untied.attention.U[0]).all()


def test_factors_are_a_tensor_of_low_rank(tokenizer):
    """The full tensor sum_r W_jr U_r V_r^T attends as the factors do."""
    factors, matrices = module_of(tokenizer, steps=2, rank=3), module_of(tokenizer, steps=2, rank=3)
    with torch.no_grad():
        use_matrices(matrices, 8)
        U, V, W = factors.attention.U, factors.attention.V, factors.attention.W
        matrices.attention.A.copy_(torch.einsum("kjr,krp,krq->kjpq", W, U, V))
        torch.testing.assert_close(embedded(matrices), embedded(factors), rtol=1e-4, atol=1e-5)


def test_a_head_weighs_its_features_alike(tokenizer):
    """Two heads over eight features, token by token."""
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
    ids, lengths = module.text_tokenizer(TEXTS)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    ids = torch.from_numpy(ids).long()
    contexts = module.attention(module.embedding(ids), ids, offsets).detach()
    z = contexts.diff(dim=0).norm(dim=2)
    assert (z <= bounds(module.attention)[:, None] * (1 + 1e-5)).all()
    sine = (z / contexts[:-1].norm(dim=2)).clamp(max=1)
    cosine = F.cosine_similarity(contexts[1:], contexts[:-1], dim=2)
    assert (cosine >= (1 - sine**2).sqrt() - 1e-5)[sine < 1].all()
    with torch.no_grad():
        # Equal gains reach the bound, whatever the text.
        module.attention.gain.fill_(2)
        module.attention.bias.zero_()
    z = module.attention(module.embedding(ids), ids, offsets).detach().diff(dim=0).norm(dim=2)
    torch.testing.assert_close(z, bounds(module.attention)[:, None].expand_as(z), rtol=1e-4, atol=0)


def test_what_is_said_of_each_step(tokenizer):
    module = module_of(tokenizer, steps=5, rank=3)
    classifier = ClassifierNetwork(SentenceTransformer(modules=[module], device="cpu"), ["0", "1"])
    labelled = Labelled(["0", "1", "1"], TEXTS)
    said = followed(classifier, labelled)
    weight, bias = classifier.head.weight.detach().double(), classifier.head.bias.detach().double()
    chosen = []
    contexts = []
    for text in TEXTS:
        ids = torch.from_numpy(module.text_tokenizer([text])[0]).long()
        path = module.attention(module.embedding(ids), ids, torch.tensor([0, len(ids)])).double()
        contexts.append(path[:, 0].detach())
        chosen.append((path[1:, 0].detach() @ weight.T + bias).argmax(1).tolist())
    c = torch.stack(contexts, 1)
    z = c.diff(dim=0)
    close = {"abs": 1e-4}
    assert said["length"] == pytest.approx(z.norm(dim=2).mean(1).tolist(), **close)
    assert said["cosine"] == pytest.approx(F.cosine_similarity(c[1:], c[:-1], dim=2).mean(1).tolist(), **close)
    assert said["turn"][0] == pytest.approx(1, **close)
    assert said["turn"][1:] == pytest.approx(F.cosine_similarity(z[1:], z[:-1], dim=2).mean(1).tolist(), **close)
    by_step = np.array(chosen).T
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
    train, _, fold = split(outcome.cell.settings, "fold 1", workplace)
    _, figures = trained(untied.settings | {"training": outcome.cell.settings["training"]}, workplace, train, fold)
    assert figures["parameters"] == 3 * outcome.figures["parameters"]
    assert outcome.cell.settings["initial"] == {TIED: True}
