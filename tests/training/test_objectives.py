"""What a student learns besides its teacher's embeddings, and how it begins as a trained model."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch.nn import functional as F

import ctx_embed
from ctx_embed.modules.contextualizer import Contextualizer
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.training.batches import PackedTexts
from ctx_embed.training.distillation import objectives, student as students
from tests.conftest import SENTENCES
from tests.helpers.errors import error

PACKED = PackedTexts(np.arange(11, dtype=np.int32), np.array([0, 2, 3, 6, 8, 9, 11]))
SAME = np.array([0, 1, 2, 0, 3, 4])
ALONE = np.zeros(6, int)


def batch(rows: list[int], step: int = 3, ids: list[int] = (), lengths: list[int] = ()) -> objectives.Batch:
    nothing = torch.zeros(len(rows), 2)
    return objectives.Batch(step, np.array(rows), torch.tensor(ids, dtype=torch.int64), list(lengths), nothing, nothing)


def require_drawn_by_step_and_seed_alone(made_with) -> None:
    places = [(0, 1), (0, 1), (0, 2), (1, 1)]
    first, again, *others = (made_with(seed).more_texts(batch([0], step))[0].tolist() for seed, step in places)
    assert again == first
    assert first not in others


def packed(encoder, texts):
    ids, lengths = encoder.text_tokenizer(texts)
    return torch.from_numpy(ids.astype(np.int64)), lengths.tolist()


def test_heads_read_the_directions_of_the_last_dimensions_and_the_genres_of_the_rows():
    torch.manual_seed(0)
    head, embeddings = objectives.LabelHead(2, 3), torch.randn(5, 4)
    torch.testing.assert_close(head(embeddings), head.linear(2**0.5 * F.normalize(embeddings[:, 2:], dim=1)))
    genres, student = objectives.Genres(2, np.array([0, 1, 1, 2])), torch.randn(3, 2)
    expected = F.cross_entropy(genres.head(student), torch.tensor([1, 0, 2]))
    assert genres.loss(batch([2, 0, 3]), student, student) == expected


def test_frequent_words_are_predicted(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(objectives, "WORDS", 2)
    words = objectives.Words(4, np.array([1, 9, 5, 7]))  # entries 1 and 3, in this order
    embeddings = torch.randn(3, 4)
    log_softmax = words.linear(F.normalize(embeddings, dim=1) * 2).log_softmax(1)
    # The second text has no frequent word and does not count.
    loss = words.loss(batch([0, 1, 2], ids=[1, 3, 0, 0, 2, 3, 3], lengths=[3, 2, 2]), embeddings, embeddings)
    expected = -((log_softmax[0, 0] + log_softmax[0, 1]) / 2 + log_softmax[2, 1]) / 2
    torch.testing.assert_close(loss, expected)
    assert words.loss(batch([0], ids=[0], lengths=[1]), embeddings[:1], embeddings) == 0


def test_the_contrast_is_that_of_sentence_transformers_and_the_ranking_scipys():
    torch.manual_seed(0)
    first, second, teacher = torch.randn(5, 4), torch.randn(5, 4), torch.randn(5, 5) / 5
    cosines = (F.normalize(first, dim=1) @ F.normalize(second, dim=1).T).numpy()
    one_way = MultipleNegativesRankingLoss(None, scale=20.0).compute_loss_from_embeddings
    contrast = float(one_way([first, second], None) + one_way([second, first], None)) / 2

    def ranking(known):
        wanted, found = (softmax(20 * each[np.ix_(known, known)], axis=1) for each in (teacher.numpy(), cosines))
        return rel_entr(wanted, found).sum(1).mean()

    for known in ([0, 1, 2, 3, 4], [1, 4], [3, 0, 2]):
        loss = objectives.contrast_loss(first, second, teacher, torch.tensor(known))
        assert float(loss) == pytest.approx(contrast + ranking(known), rel=1e-5)
    assert float(objectives.contrast_loss(first, second, teacher)) == pytest.approx(contrast + ranking([*range(5)]))
    # Where the teacher knows too few, its ranking is left out.
    assert float(objectives.contrast_loss(first, second, teacher, torch.tensor([1]))) == pytest.approx(contrast)


def test_pairs_are_drawn_by_the_step_and_held_out_with_either_text():
    teacher = np.eye(6, 4, dtype=np.float16)
    pairs = np.array([[0, 1], [2, 3], [4, 5]])
    partners = objectives.Partners(PACKED, pairs, np.array([5]), teacher, SAME, 8, 0, ALONE)
    assert partners.pairs.tolist() == [[0, 1], [2, 3]]
    assert partners.held_out_pairs.tolist() == [[4, 5]]
    ids, lengths = partners.more_texts(batch([0, 1]))
    assert lengths in ([2, 3, 1, 2], [3, 2, 2, 1])  # first texts, then their partners
    assert (len(ids), ids.dtype) == (8, torch.int64)
    loss = partners.loss(batch([0, 1]), torch.zeros(2, 2), torch.eye(4, 2))
    assert torch.isfinite(loss)
    said = error(objectives.Partners, PACKED, pairs, np.array([1, 5]), teacher, SAME, 8, 0, ALONE)
    assert "pairs must be at least 2, got 1; give a source of pairs" in said
    # The share of held-out partners found is measured.
    pairs = np.array([[0, 1], [1, 0], [2, 3], [4, 5]])
    partners = objectives.Partners(PACKED, pairs, np.array([2, 4]), np.eye(6, dtype=np.float16), SAME, 2, 0, ALONE)
    first, second = torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[1.0, 0], [1, 1]])
    for partner, found in ((second, 1.0), (second.flip(0), 0.0)):
        answers = iter([first, partner])
        assert partners.measures(lambda *_, answers=answers: next(answers)) == {"held_out_pairs_found": found}


def test_a_second_teacher_teaches_the_texts_that_it_knows():
    torch.manual_seed(1)
    embeddings, rotation = torch.randn(2, 3), torch.linalg.qr(torch.randn(3, 2))[0]
    given = embeddings.numpy().astype(np.float16), rotation.numpy()
    second = objectives.SecondTeacher(PACKED, np.array([1, 4]), *given, np.array([4, 5]), relation_weight=2.0)
    student = torch.randn(3, 2, requires_grad=True)
    # The texts 1 and 4 are known: their cosines to the rotated teacher, and the one between them, twice of four.
    apart = 1 - F.cosine_similarity(student[1:], F.normalize(embeddings, dim=1) @ rotation, dim=1)
    of_student, of_teacher = (F.cosine_similarity(each[0], each[1], dim=0) for each in (student[1:], embeddings))
    loss = second.loss(batch([0, 1, 4]), student, student)
    torch.testing.assert_close(loss, apart.mean() + 2 * (of_student - of_teacher) ** 2 / 2, rtol=0, atol=2e-3)
    loss.backward()
    assert not student.grad[0].any()
    # A single text has no relations, and none is known here.
    assert second.loss(batch([0, 4]), student[:2], student).item() == 0
    assert second.held_out.tolist() == [4]
    measured = second.measures(lambda ids, lengths: student[2:].detach()[: len(lengths)])
    assert measured == {"held_out_second_distance": pytest.approx(apart[1].item(), abs=1e-3)}


def test_a_student_begins_as_the_shipped_model(sentences, tokenizer):
    other = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")
    assert "--from must be a model made by distill" in error(students.require_encoder, other)
    model = ctx_embed.load()
    before = model.encode(sentences)
    # This teacher's embeddings are the model's own in other directions, which the rotation takes back.
    directions, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(320, 320)))
    taught = (before @ directions).astype(np.float16)
    student, rotation = students.started_student(model, sentences, taught, 64)
    assert rotation[:, :256].T @ rotation[:, :256] == pytest.approx(np.eye(256), abs=1e-4)
    assert rotation.shape == (320, 320)
    assert not rotation[:, 256:].any()
    target = before @ directions @ rotation
    cosines = (target * before).sum(1) / np.linalg.norm(target, axis=1)
    assert cosines.min() > 0.98
    composition = students.Composition(student)
    # Each phrase has its own row alone; folded, the model is as it was.
    with composition.folded():
        assert model.encode(sentences) == pytest.approx(before, abs=1e-5)
    ids, lengths = packed(student, sentences)
    used = composition.used(ids)
    embedded = composition.embed(ids, lengths, used, student.train().embedding.weight.detach()[used])
    assert F.normalize(embedded, dim=1).detach().numpy() == pytest.approx(before, abs=1e-4)


def test_a_student_keeps_the_heads_of_largest_norm(sentences):
    module = ctx_embed.load()[0]
    rank = module.rank
    before = module.eval().embed(*packed(module, sentences))
    assert torch.equal(students.with_rank(module, rank).eval().embed(*packed(module, sentences)), before)
    # One head more in each step, which adds nothing: it is the one that goes.
    config = module.get_config_dict() | {"rank": rank + 1}
    wide = Contextualizer(module.backend_tokenizer, **config, phrases=module.phrases)
    heads = {f"attention.{name}": F.pad(getattr(module.attention, name), (0, 0, 1, 0)) for name in "UV"}
    wide.load_state_dict(module.state_dict() | heads | {"attention.W": F.pad(module.attention.W, (1, 0))})
    cut = students.with_rank(wide, rank)
    assert cut.get_config_dict() == module.get_config_dict()
    assert all(torch.equal(cut.state_dict()[name], value) for name, value in module.state_dict().items())
    # Without half of its heads the model is another, but near.
    half = students.with_rank(module, rank // 2).eval()
    assert half.attention.W.shape == (3, 320, rank // 2)
    assert 0.9 < F.cosine_similarity(half.embed(*packed(half, sentences)), before).mean() < 0.999


def test_a_batch_of_pairs_holds_no_text_twice_and_half_of_it_is_of_one_family():
    # 400 pairs of one family and 25 of another, with shares of 20 : 5. In each family two pairs have one answer.
    pairs = np.arange(850).reshape(-1, 2)
    families = np.repeat([0, 1], [800, 50])
    same = np.arange(850)
    same[[1, 801]] = same[[3, 803]]
    teacher = np.zeros((850, 2), np.float16)
    teacher[800:] = [3, 4]
    # A text's only token is its number.
    texts = PackedTexts(np.arange(850, dtype=np.int32), np.arange(851))
    made_with = partial(objectives.Partners, texts, pairs, np.zeros(0, int), teacher, same, 20, families=families)
    require_drawn_by_step_and_seed_alone(made_with)
    partners, of_smaller = made_with(0), []
    for step in range(300):
        drawn = partners.more_texts(batch([0], step))[0].numpy().reshape(2, -1)
        assert drawn.shape[1] in (19, 20)
        assert all(len(np.unique(same[side])) == len(side) for side in drawn)
        of_smaller.append(int((drawn[0] >= 800).sum()))
    # 2 of 10 on average, and 10 more in every fifth batch.
    assert np.mean(of_smaller) == pytest.approx(4, abs=0.5)
    assert np.mean(np.array(of_smaller) >= 9) == pytest.approx(0.2, abs=0.06)
    # The teacher, to whom all its texts are the same, ranks the pairs that it knows.
    student = torch.randn(2 * drawn.shape[1], 3, generator=torch.Generator().manual_seed(0))
    known = torch.from_numpy(np.flatnonzero(drawn[0] >= 800))
    expected = objectives.contrast_loss(*student.chunk(2), torch.ones(drawn.shape[1], drawn.shape[1]), known)
    assert float(partners.loss(batch([0], step), student, student)) == pytest.approx(float(expected), rel=1e-5)


def test_contrasts_are_contradictions_and_negations():
    for text, expected in {
        "The clock is slow.": "The clock isn't slow.",
        "She isn't at home": "She is at home",
        "It did not rain": "It did rain",
        "the maps were wrong": "the maps were not wrong",
        "a red clock": None,
        "is it late ?": None,
        "it is " + "very " * 40 + "late": None,
    }.items():
        assert objectives.negated(text) == expected
    texts = ["he is up", "he stands", "he lies", "no verb", "none here", "long " * 40 + "is"]
    pairs, opposed = np.array([[0, 1], [3, 4], [5, 1]]), np.array([[0, 2]])
    found = objectives.triples(texts, pairs, opposed)
    assert found[0] == ("he is up", "he stands", "he lies")
    assert found[1][:2] == ("he is up", "he stands")
    assert found[1][2] in ("he is not up", "he isn't up")
    assert len(found) == 2


def test_a_partner_is_to_be_nearer_than_a_contrast(tokenizer):
    of_texts = [("cat " * n, "dog " * n, "film " * n) for n in range(1, 41)]
    made_with = partial(objectives.Contrasts, TextTokenizer(tokenizer), of_texts, 2)
    require_drawn_by_step_and_seed_alone(made_with)
    contrasts = made_with(0)
    assert len(contrasts.held_out) == 2
    _, lengths = contrasts.more_texts(batch([0], 5))
    assert len(lengths) == 6
    # Two texts at right angles to their contrasts and at their partners, then the other way round.
    at, away = torch.tensor([[1.0, 0], [1, 0]]), torch.tensor([[0.0, 1], [0, 1]])
    near = contrasts.loss(batch([0], 5), at, torch.cat([at, at, away]))
    far = contrasts.loss(batch([0], 5), at, torch.cat([at, away, at]))
    assert near.item() == pytest.approx(np.log1p(np.exp(-10)), abs=1e-5)
    assert far.item() == pytest.approx(10, abs=1e-3)
    assert contrasts.measures(lambda ids, lengths: torch.cat([at, at, away])) == {"held_out_contrasts": 1.0}
    said = error(objectives.Contrasts, TextTokenizer(tokenizer), of_texts[:39], 2, 0)
    assert "at least 40 contrasts, got 39" in said


def test_labels_are_read_from_a_teacher():
    generator = np.random.default_rng(0)
    embeddings = generator.normal(size=(300, 5)).astype(np.float16)
    texts = [str(number) for number in range(300)]
    labels = ["good" if row[2] > 0 else "bad" for row in embeddings]
    probabilities = objectives.taught_labels(embeddings, texts, labels[:200], texts[:200])
    assert probabilities.shape == (300, 2)
    # Of the texts that were not labelled, it finds nearly all.
    right = (probabilities[200:, 1] > 0.5).numpy() == (embeddings[200:, 2] > 0)
    assert right.mean() > 0.9
    said = error(objectives.taught_labels, embeddings, texts, labels[:50], texts[:50])
    assert "at least 100 labelled texts for its labels, got 50" in said
    head = objectives.LabelHead(2, 2)
    places = objectives.places_of(np.array([1, 4]), 6)
    taught = objectives.TaughtLabels(head, places, torch.tensor([[1.0, 0], [0.5, 0.5]]))
    student = torch.randn(3, 2)
    logits = head(student[1:]).log_softmax(1)
    expected = -(logits[0, 0] + logits[1].mean()) / 2
    assert taught.loss(batch([0, 1, 4]), student, student).item() == pytest.approx(expected.item(), abs=1e-6)
    assert taught.loss(batch([0, 2]), student[:2], student).item() == 0


def test_a_grown_student_begins_near_the_shipped_model(sentences):
    module = ctx_embed.load()[0]
    ids = module.backend_tokenizer.get_vocab()
    more = np.array([[ids["quick"], ids["fox"]], [ids["purple"], ids["idea"]]], dtype=np.int32)
    grown = students.with_phrases(module, np.concatenate([module.phrases.numpy(), more]))
    assert grown.entries == module.entries + 2
    ids, _ = grown.text_tokenizer(["purple idea"])
    assert grown.text_tokenizer.entry_texts()[ids[-1]] == "purple idea"
    composition = students.Composition(grown)
    students.leave_own_rows(grown)
    assert not grown.embedding.weight[-2:].any()
    with composition.folded():
        texts = [*sentences, "purple idea"]
        before, after = (encoder.eval().embed(*packed(encoder, texts)) for encoder in (module, grown))
    assert torch.equal(before[:-1], after[:-1])
    assert F.cosine_similarity(before[-1], after[-1], dim=0) > 0.9


def test_spans_are_pieces_of_their_texts_and_not_of_those_held_out(tokenizer, monkeypatch):
    monkeypatch.setattr(objectives, "LABEL_BATCH", 500)
    texts = [" ".join([sentence] * 9) for sentence in SENTENCES] + [""]
    every = [text and f"{text} {n}" for n in range(10) for text in texts]
    made_with = partial(objectives.Labels, 4, TextTokenizer(tokenizer), (["good"] * 7 + ["bad"] * 2) * 10, every)
    require_drawn_by_step_and_seed_alone(made_with)
    labelled = made_with(3)
    ids, lengths = labelled.more_texts(batch([], step=0))
    assert len(lengths) == len(labelled._drawn) == 500
    shortest, longest = objectives.SPAN_TOKENS
    assert set(lengths) <= {0, *range(shortest, longest + 1)}
    texts = [str(labelled.packed.batch(np.array([row]))[0].tolist()) for row in range(len(labelled.packed))]
    for part, target in zip(ids.split(lengths)[:40], labelled._drawn.tolist()[:40], strict=True):
        piece = str(part.tolist())[1:-1]
        assert any(piece in texts[row] for row in labelled.rows_of_class[target])
    # Labels are drawn alike.
    assert abs(labelled._drawn.mean() - 0.5) < 0.1
    assert 9 <= len(labelled.held_out_rows) < 19  # ten texts are empty
    assert not set(labelled.held_out_rows) & {row for rows in labelled.rows_of_class for row in rows}
    measured = []

    def embed(ids, lengths):
        measured.append(ids)
        return torch.ones(len(lengths), 4)

    assert labelled.measures(embed) == labelled.measures(embed)
    assert torch.equal(*measured)
    # Nor of their copies.
    texts = [f"text {number % 40}" for number in range(80)]
    labelled = objectives.Labels(4, TextTokenizer(tokenizer), ["a", "b"] * 40, texts, seed=0)
    held_out = {texts[row] for row in labelled.held_out_rows}
    drawn = {texts[row] for rows in labelled.rows_of_class for row in rows}
    assert (len(labelled.held_out_rows), held_out & drawn) == (8, set())
    # Of few texts none is held out.
    assert not len(objectives.Labels(4, TextTokenizer(tokenizer), ["a", "b"], texts[:2], seed=0).held_out_rows)
