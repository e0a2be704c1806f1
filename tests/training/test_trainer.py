"""A student is trained on texts and phrases."""

import copy
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from torch.nn import functional as F

from ctx_embed.modules import Contextualizer
from ctx_embed.text.tokenizer import Phrases, TextTokenizer
from ctx_embed.training.distillation import objectives, student as students
from ctx_embed.training.distillation.texts import Block, Mixture, Pairs
from ctx_embed.training.distillation.trainer import Distillation, LazyAdamW
from ctx_embed.training.options import DistillationOptions
from ctx_embed.training.run import Checkpoint
from ctx_embed.training.vocabulary import learn_vocabulary
from tests.helpers.errors import error
from tests.training.toy import same, state

OPTIONS = DistillationOptions(epochs=2, batch_size=16, held_out=16)


def test_options_by_hand():
    # A tenth is held out, unless more is asked for.
    assert [DistillationOptions().for_texts(count).held_out for count in (5_000, 100_000)] == [500, 4096]
    assert DistillationOptions(held_out=20).for_texts(5_000).held_out == 20
    options = DistillationOptions(learning_rate=2.0)
    # Of 40 steps, two rise; 38 fall along half a cosine.
    assert [options.learning_rate_at(step, 40) for step in (0, 1, 2, 40)] == pytest.approx([1, 2, 2, 0])
    assert options.learning_rate_at(21, 40) == pytest.approx(1)
    assert options.learning_rate_at(2 + 38 / 4, 40) == pytest.approx(1 + 2**0.5 / 2)
    assert options.learning_rate_at(0, 1) == 2


def test_the_rotation_and_the_table_by_hand():
    embeddings = np.array([[0, 3, 0], [0, -3, 0], [-2, 0, 0], [0, 0, 1]], dtype=np.float16)
    assert students.rotation_to(2, embeddings) == pytest.approx(np.array([[0, 1], [1, 0], [0, 0]]))
    embeddings = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float16)
    rotation = students.rotation_to(6, embeddings)
    assert rotation.T @ rotation == pytest.approx(np.eye(6), abs=1e-6)
    assert rotation == pytest.approx(students.rotation_to(6, embeddings[::-1]), abs=1e-5)
    # Of an eigenvector's two signs, the one that makes its largest entry positive.
    assert (rotation.max(0) == np.abs(rotation).max(0)).all()
    lengths = np.square(embeddings.astype(np.float32) @ rotation).sum(0)
    assert (np.diff(lengths) < 0).all()
    entries = np.array([[2.0], [0.0]], dtype=np.float32)
    table = students.token_table(entries, np.array([1e-3, 0.0]), np.ones((1, 1), dtype=np.float32))
    # Centred 1 and -1, weighted 1/2 and 1, whose standard deviation is 3/4.
    assert table == pytest.approx(np.array([[0.5 * 0.1 / 0.75], [-0.1 / 0.75]]))
    assert table.dtype == np.float32


@pytest.fixture(scope="module")
def texts(sentences) -> list[str]:
    """64 texts."""
    return [f"{sentence} {other.split()[0]} {n}" for n, sentence in enumerate(sentences) for other in sentences]


@pytest.fixture(scope="module")
def teacher(tiny_model, texts, tokenizer):
    """The teacher's embeddings of the texts, and those of the vocabulary's entries."""
    return tiny_model.encode(texts).astype(np.float16), tiny_model.encode(students.entry_texts(tokenizer))


@pytest.fixture(scope="module")
def mixture(texts) -> Mixture:
    return Mixture([Block(tuple(texts))], np.ones(64, bool), np.repeat([0, 1], 32))


@pytest.fixture
def start(tokenizer, mixture, teacher):
    """Begin a run: a new student of 8 dimensions under some options."""

    def begin(options=OPTIONS, checkpoint=None, run=None, mixture=mixture, kind=Distillation, **architecture):
        given = Contextualizer, tokenizer, mixture.texts, *teacher, 8, options.seed
        chosen = {"steps": 2, "rank": 3, "phrases": None, "spare_dimensions": 0, **architecture}
        student, rotation = students.new_student(*given, **chosen)
        return kind(student, mixture, teacher[0], rotation, options, checkpoint, **(run or {}))

    return begin


class Watched(Distillation):
    """A training that calls ``before`` with itself and a batch's rows before each step, and ``after`` then."""

    before = after = staticmethod(lambda run, rows: None)
    checkpoint_steps, log_steps, averaging_steps = 2, 2, 2

    def train_batch(self, rows, total):
        self.before(self, rows)
        losses = super().train_batch(rows, total)
        self.after(self, rows)
        return losses


def stop(run, step) -> None:
    """Interrupt a run at a step."""

    def before(run, rows):
        if run.step == step:
            raise KeyboardInterrupt

    run.before = before
    with pytest.raises(KeyboardInterrupt):
        run.run(progress=False)


def test_a_student_begins_as_static_embeddings(start, tokenizer, texts, teacher):
    entries = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    assert students.entry_texts(tokenizer) == [entry.removeprefix("##") for entry in entries]
    student = start().student
    ids, _ = TextTokenizer(tokenizer)(texts)
    frequencies = np.bincount(ids, minlength=tokenizer.get_vocab_size()) / len(ids)
    table = students.token_table(teacher[1], frequencies, students.rotation_to(8, teacher[0]))
    assert np.array_equal(student.embedding.weight.detach().numpy(), table)
    assert not student.attention.W.any()
    assert (student.attention.b == 1).all()


def test_the_best_epoch_is_kept_the_start_included(start):
    run = start(replace(OPTIONS, learning_rate=10.0))
    before = state(run.student)
    history = run.run(progress=False)
    assert history[-1]["held_out_distance"] > history[0]["held_out_distance"] == run.held_out_distance()
    assert (run.kept_epoch, same(before, state(run.student))) == (0, True)
    # Words are no part of the distance to the teacher. What is measured is the mean, which is kept.
    run = start(replace(OPTIONS, learning_rate=10.0, word_weight=0.1), run={"start_share": 0.25})
    assert run.run(progress=False)[-1]["held_out_distance"] == run.held_out_distance()
    assert run.kept_epoch == 2


def test_a_seeded_part_is_held_out(start, teacher):
    seen = []
    run = start(kind=Watched)
    run.before = lambda _, rows: seen.append(rows)
    held_out = run.held_out_rows
    assert len(held_out) == 16
    run.run(progress=False)
    shown = np.bincount(np.concatenate(seen), minlength=64)
    assert (shown[held_out] == 0).all()
    assert shown.sum() == 2 * 48
    assert shown.max() == 2
    embeddings = torch.cat([run.student.embed(*run.packed.batch(np.array([row]))) for row in held_out]).detach()
    target = torch.from_numpy(teacher[0][held_out].astype(np.float32)) @ run.rotation
    expected = (1 - F.cosine_similarity(embeddings, target)).mean().item()
    assert run.held_out_distance() == pytest.approx(expected, abs=1e-6)
    other = start(replace(OPTIONS, seed=1))
    assert set(other.held_out_rows) != set(held_out)
    assert not same(state(start().student), state(other.student))


@pytest.mark.parametrize("learning_rate", [OPTIONS.learning_rate, 10.0], ids=["last epoch", "start"])
def test_an_interrupted_run_gives_the_same_weights_as_an_uninterrupted_one(start, tmp_path, learning_rate):
    options = replace(OPTIONS, learning_rate=learning_rate)
    whole = start(options, kind=Watched)
    whole_history = whole.run(progress=False)
    # Steps 2 and 4, and the end of the first epoch at 3, are saved; then the end.
    for step, saved in ((1, 0), (2, 2), (3, 3), (5, 4)):
        stop(start(options, Checkpoint(tmp_path / f"{step}", "run"), kind=Watched), step)
        for steps in (saved, 6):
            trained = []
            resumed = start(options, Checkpoint(tmp_path / f"{step}", "run"), kind=Watched)
            resumed.before = lambda run, rows, trained=trained: trained.append(run.step)
            assert resumed.run(progress=False) == whole_history
            assert (resumed.kept_epoch, resumed.losses) == (whole.kept_epoch, whole.losses)
            assert same(state(resumed.student), state(whole.student))
            assert trained == list(range(steps, 6))


def test_a_training_takes_the_steps_of_torchs_adamw(start):
    """Of all parameters at once, with the rate of each step; most rows of the table are read in some steps only."""
    options = replace(OPTIONS, epochs=2, batch_size=2)
    run = start(options, kind=Watched)
    # Rows catch up when they are read and at the end of an epoch.
    run.checkpoint_steps = 1000
    student, rows = copy.deepcopy(run.student).train(), []
    run.before = lambda _, of_batch: rows.append(of_batch)
    run.run(progress=False)
    optimizer = torch.optim.AdamW(student.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    for step, of_batch in enumerate(rows):
        optimizer.param_groups[0]["lr"] = options.learning_rate_at(step, len(rows))
        embedded = F.normalize(student.embed(*run.packed.batch(of_batch)), dim=1)
        teacher = F.normalize(torch.from_numpy(run.teacher[of_batch].astype(np.float32)), dim=1)
        distance = (1 - (embedded * F.normalize(teacher @ run.rotation, dim=1)).sum(1)).mean()
        loss = distance + options.relation_weight * (embedded @ embedded.T - teacher @ teacher.T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, tensor in student.state_dict().items():
        torch.testing.assert_close(run.student.state_dict()[name], tensor, rtol=1e-3, atol=2e-4)


def test_a_row_takes_the_steps_of_torchs_adamw_when_it_is_read_after_however_long():
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(40, 3, generator=generator)
    whole = torch.nn.Parameter(table.clone())
    lazy = LazyAdamW(table, betas=(0.9, 0.99), weight_decay=0.3)
    optimizer = torch.optim.AdamW([whole], lr=0.02, betas=(0.9, 0.99), weight_decay=0.3)
    for _ in range(300):
        # Some rows are read in every step, some once in a hundred.
        read = (torch.rand(40, generator=generator) < torch.linspace(0.005, 1, 40)).nonzero().flatten()
        gradient = torch.randn(len(read), 3, generator=generator)
        torch.testing.assert_close(lazy.rows(read).detach(), whole.detach()[read], rtol=0, atol=2e-5)
        lazy.step(read, gradient, 0.02)
        whole.grad = torch.zeros(40, 3).index_copy(0, read, gradient)
        optimizer.step()
    lazy.catch_up()
    torch.testing.assert_close(table, whole.detach(), rtol=0, atol=2e-5)


def test_no_copy_of_a_held_out_text_is_trained_on(start, mixture, texts):
    """Random labels, or a corpus of copies, would otherwise look learned."""
    distinct = sorted(set(texts))[:32]
    copied = [text for text in distinct for _ in range(2)]
    copies = replace(mixture, blocks=[Block(tuple(copied))])
    run = start(DistillationOptions(batch_size=8, held_out=15), mixture=copies)
    held_out, trained = ({copied[row] for row in rows} for rows in (run.held_out_rows, run.rows))
    assert (len(run.held_out_rows), len(run.rows), len(held_out)) == (16, 48, 8)
    assert not held_out & trained
    # Too few may be left.
    one = replace(mixture, blocks=[Block(("one text",) * 64)])
    few = replace(mixture, shown=np.arange(64) >= 40)
    excluded = (~few.shown[start().rows]).sum()
    for which, left_out in ((one, "64 held out"), (few, f"16 held out, {excluded} excluded")):
        message = f"64 texts are too few for two batches of 16 ({left_out}); "
        assert error(start, mixture=which).startswith(message)


def test_a_run_that_diverges_at_its_last_step_is_stopped(start):
    # The loss of the last step, 3, is finite; the distance after it is not.
    for filled, stopped in ((1, 2), (3, 3)):
        run = start(replace(OPTIONS, epochs=1), kind=Watched)
        run.after = lambda run, _, at=filled: run.step == at and run.student.embedding.weight.data.fill_(torch.nan)
        said = f"the training diverged at step {stopped} (nan); lower --learning-rate"
        assert error(run.run, progress=False) == said


WEIGHTS = {"label_weight": 1.0, "word_weight": 0.1, "averaging": 0.5, "genre_weight": 0.1}
EVERYTHING = DistillationOptions(epochs=3, batch_size=8, held_out=8, **WEIGHTS)


def test_each_objective_has_its_weight_and_is_left_out_at_0(start, mixture, texts, teacher, monkeypatch):
    monkeypatch.setattr(objectives, "FEWEST_TAUGHT", 64)
    together = replace(mixture, blocks=[Block(tuple(texts), second=True)], pairs=np.arange(64).reshape(-1, 2))
    second = teacher[0], np.eye(16, 8, dtype=np.float32)
    begin = partial(start, mixture=together, run={"labelled": (["a", "b"] * 32, texts), "second": second})
    terms = {"label_weight": "labels", "word_weight": "words", "genre_weight": "genres"}
    terms |= {"pair_weight": "partners", "second_weight": "second", "taught_label_weight": "taught_labels"}
    weights = {name: 0.1 * place for place, name in enumerate(terms, 1)}
    every = begin(replace(OPTIONS, **weights)).objectives
    expected = {terms[name]: weight for name, weight in weights.items()}
    expected["second_taught_labels"] = weights["taught_label_weight"]
    assert {name: weight for name, (_, weight) in every.items()} == expected
    assert every["second"][0].relation_weight == OPTIONS.relation_weight
    # Labels and genres are read from all dimensions or from those that the teacher leaves.
    spare = begin(replace(OPTIONS, **weights, labels_from="spare"), spare_dimensions=2).objectives
    for terms_of, read in ((every, 8), (spare, 2)):
        assert {terms_of[name][0].head.linear.in_features for name in ("labels", "genres")} == {read}
    message = "labels_from='spare' needs spare_dimensions above 0, got 0; set both"
    assert error(DistillationOptions(labels_from="spare").label_dimensions, 8, 0) == message
    for name in ("taught_labels", "second_taught_labels"):
        assert every[name][0].head is every["labels"][0].head
    for names in [[name] for name in terms if name != "label_weight"] + [["label_weight", "taught_label_weight"]]:
        left = begin(replace(OPTIONS, **weights | dict.fromkeys(names, 0.0))).objectives
        both = {"second_taught_labels"} if "taught_label_weight" in names else set()
        assert every.keys() - left.keys() == {terms[name] for name in names} | both


def test_all_objectives_together_resume(start, sentences, texts, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(objectives, "WORDS", 20)
    distinct = [f"{text} {number}" for number in range(8) for text in sentences]
    labelled = (["film" if "film" in text else "other" for text in distinct], distinct)
    pairs = Pairs([1.0, 0.0, 0.5], sentences[:3], sentences[3:6])
    phrases = students.learn_phrases(texts, tokenizer, 12, fewest=2)

    def begin(checkpoint=None):
        run = {"labelled": labelled, "pairs": pairs}
        return start(EVERYTHING, checkpoint, run=run, kind=Watched, phrases=phrases, spare_dimensions=2)

    whole = begin()
    assert not whole.rotation[:, 6:].any()
    history = whole.run(progress=False)
    assert set(history[-1]) == {"epoch", "step", "held_out_distance", "held_out_label_accuracy", "pairs_spearman"}
    assert history[-1]["held_out_label_accuracy"] > 0.7
    assert history[-1]["held_out_distance"] < history[0]["held_out_distance"]

    stop(begin(Checkpoint(tmp_path / "out", "run")), 5)
    resumed = begin(Checkpoint(tmp_path / "out", "run"))
    assert resumed.run(progress=False) == history
    assert resumed.losses == whole.losses
    assert same(state(whole.trained), state(resumed.trained))

    terms = {"similarity", "relations", "labels", "words", "genres"}
    (second,) = [entry for entry in whole.losses if entry["step"] == 2]
    assert set(second) == {"step", "loss", *terms}
    assert second["loss"] == pytest.approx(sum(second[term] for term in terms), rel=1e-5)


def test_averaged_weights_are_the_ones_kept(start):
    seen = []
    run = start(replace(OPTIONS, epochs=1, averaging=0.3), kind=Watched)
    run.averaging_steps, run.decay_steps = 1, 0.5
    run.after = lambda run, rows: seen.append(run.student.attention.b.detach().clone())
    run.run(progress=False)
    expected = seen[0]
    # Two periods of the decay pass between averages.
    for decay, weights in zip((3 / 12, 5 / 14), seen[1:], strict=True):
        expected = expected.lerp(weights, 1 - min(0.3, decay) ** 2)
    torch.testing.assert_close(run.student.attention.b, expected)


# Phrases
LIKED = ["i don't like new york at all", "they don't like the new york times", "new ideas and york hams"] * 10


@pytest.fixture(scope="module")
def wordpiece():
    return learn_vocabulary(LIKED, 120, progress=False)


def phrase_texts(tokenizer, pairs) -> list[str]:
    entries = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    return Phrases(pairs, len(entries)).texts(entries)


def test_neighbours_beyond_chance_become_phrases_and_phrases_of_phrases(wordpiece):
    pairs = students.learn_phrases(LIKED, wordpiece, 10)
    found = phrase_texts(wordpiece, pairs)
    assert len(found) == 5
    assert "new york" in found
    assert "don ' t like" in found
    assert "ideas new" not in found  # never across two texts
    assert np.array_equal(pairs, students.learn_phrases(LIKED[::-1], wordpiece, 10))
    tokens, _ = TextTokenizer(wordpiece, Phrases(pairs, wordpiece.get_vocab_size()))(LIKED[:1])
    assert len(tokens) < len(wordpiece.encode(LIKED[0]).ids)
    # Rare neighbours are none.
    assert students.learn_phrases(LIKED[:3], wordpiece, 10) is students.learn_phrases(LIKED, wordpiece, 0) is None
    assert students.learn_phrases([], wordpiece, 10) is None


@pytest.mark.parametrize("initial_context", ["ones", "uniform"])
def test_a_phrase_is_trained_as_the_sum_of_its_parts_and_itself(wordpiece, initial_context):
    torch.manual_seed(0)
    pairs = students.learn_phrases(LIKED, wordpiece, 10)
    encoder = Contextualizer(wordpiece, 6, steps=2, rank=3, phrases=pairs, initial_context=initial_context)
    own = encoder.embedding.weight.detach().clone()
    expected = own.clone()
    for number, (first, second) in enumerate(pairs.tolist(), wordpiece.get_vocab_size()):
        expected[number] = own[number] + expected[first] + expected[second]
    composition = students.Composition(encoder)
    ids, lengths = encoder.text_tokenizer(LIKED[:3])
    ids = torch.from_numpy(ids.astype(np.int64))
    assert bool((ids >= wordpiece.get_vocab_size()).any())
    used = composition.used(ids)
    rows = own[used].requires_grad_()
    trained = composition.embed(ids, lengths.tolist(), used, rows)
    trained.square().sum().backward()
    # A word is trained by the phrases it is in.
    assert rows.grad[used == wordpiece.get_vocab()["york"]].abs().sum() > 0
    with composition.folded():
        torch.testing.assert_close(encoder.embedding.weight.detach(), expected)
        torch.testing.assert_close(encoder.eval().embed(ids, lengths.tolist()), trained, rtol=1e-4, atol=1e-5)
    assert torch.equal(encoder.embedding.weight, own)
    composition.fold()
    torch.testing.assert_close(encoder.embedding.weight.detach(), expected)
    students.leave_own_rows(encoder)
    torch.testing.assert_close(encoder.embedding.weight.detach(), own)


def test_more_phrases_join_pieces_and_negated_words_after_those_known():
    texts = ["the metastasis was not found", "a metastasis is not seen in the lung", "lungs and metals do not move"]
    texts = [*texts, "the lung is not 42"] * 30
    words = "the was not found a is seen in lung lungs and metals do move 42"
    entries = ["[PAD]", "[UNK]", "meta", "##sta", "##sis", *words.split()]
    tokenizer = Tokenizer(WordPiece({entry: number for number, entry in enumerate(entries)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    known = students.learn_phrases(texts, tokenizer, 2)
    pairs = students.more_phrases(texts, tokenizer, known, 60)
    assert np.array_equal(pairs[: len(known)], known)
    found = phrase_texts(tokenizer, pairs)
    # Pieces give the whole word, without a space, and no phrase ends in the midst of a word.
    assert "metastasis" in found
    assert not any(text.split()[-1] in ("meta", "metasta") for text in found if " " in text)
    assert "not found" in found
    assert not any(re.search("[^a-z ]", text) for text in found)
    assert students.more_phrases(texts, tokenizer, known, 0) is known
    assert students.more_phrases([], tokenizer, None, 5) is None
