"""What trainings share: batches, checkpoints, labelled texts and vocabularies."""

import hashlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordPiece

from ctx_embed import load
from ctx_embed.errors import InputError, UnwritableError
from ctx_embed.eval.encoders import as_encoder
from ctx_embed.eval.evaluation import EvaluationOptions, evaluate
from ctx_embed.eval.reports import notes
from ctx_embed.fingerprint import identity
from ctx_embed.loading import DEFAULT_MODEL
from ctx_embed.systems import untrained
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.training.batches import like_length_batches, seeded_batches
from ctx_embed.training.distillation.texts import read_excluded
from ctx_embed.training.labelled_texts import are_known, hashes_of, joined, text_hash, words_of
from ctx_embed.training.run import Checkpoint, contents_hash, file_hashes
from ctx_embed.training.vocabulary import learn_vocabulary, read_vocabulary
from tests.conftest import make_model
from tests.helpers.errors import error, full_disk

# Batches


@given(st.lists(st.integers(0, 99), min_size=1, max_size=200), st.integers(1, 50), st.integers(0, 2**32 - 1))
@example([0] * 7, 3, 0)
def test_batches_cover_all_rows_once_and_a_last_one_of_one_row_joins_the_one_before(lengths, batch_size, seed):
    plain = list(seeded_batches(len(lengths), batch_size, seed, 0))
    alike = list(like_length_batches(np.array(lengths), batch_size, seed, 0))
    for batches in (plain, alike):
        assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    *full, last = map(len, plain)
    assert set(full) <= {batch_size}
    assert min(2, batch_size, len(lengths)) <= last <= batch_size + (batch_size > 1)
    assert sorted(map(len, alike)) == sorted(map(len, plain))


def test_seed_and_epoch_give_the_order_and_batches_of_like_length_are_of_neighbours_by_length():
    places = [(seed, epoch) for seed in range(3) for epoch in range(3)] * 2
    orders = {tuple(np.concatenate(list(seeded_batches(50, 8, seed, epoch)))) for seed, epoch in places}
    assert len(orders) == 9
    lengths = np.random.default_rng(0).permutation(240)
    # Pools of 50 batches, each in the order of its lengths.
    drawn, spans = list(seeded_batches(240, 2, 0, 0)), []
    for pool in (drawn[:50], drawn[50:100], drawn[100:]):
        spans += np.sort(lengths[np.concatenate(pool)]).reshape(-1, 2).tolist()
    assert sorted(sorted(lengths[batch].tolist()) for batch in like_length_batches(lengths, 2, 0, 0)) == sorted(spans)
    orders = {tuple(map(tuple, like_length_batches(lengths[:40], 8, 0, epoch))) for epoch in [*range(5)] * 2}
    assert len(orders) == 5


# Checkpoints


def test_identity_is_of_values_and_their_order():
    assert identity({"a": 1, "b": [2]}, "x") == identity({"b": [2], "a": 1}, "x")
    assert len({identity(1), identity("1"), identity(2), identity(1, 2), identity([1, 2]), identity(None)}) == 6


def test_a_state_comes_back_to_the_same_run_only(tmp_path):
    output = tmp_path / "model"
    assert Checkpoint(output, "run").load() is None
    assert list(tmp_path.iterdir()) == []
    state = {"weights": {"w": torch.arange(3.0)}, "history": [{"epoch": 1, "loss": 0.5}]}
    Checkpoint(output, "run").save(state)
    assert [path.name for path in tmp_path.iterdir()] == ["model.partial"]
    loaded = Checkpoint(output, "run").load()
    assert loaded.pop("weights")["w"].tolist() == [0, 1, 2]
    assert loaded == {"history": state["history"]}
    assert Checkpoint(output, "another run").load() is None
    checkpoint = Checkpoint(output, "another run")
    checkpoint.save({"step": 1})
    assert Checkpoint(output, "run").load() is None
    # A damaged state, or one of something else, is none.
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:-100])
    assert checkpoint.load() is None
    torch.save({"no": "run"}, checkpoint.path)
    assert checkpoint.load() is None
    checkpoint.save({"step": 2})
    assert checkpoint.load() == {"step": 2}


def test_files_are_known_by_name_and_content(tmp_path):
    for name, content in (("a/x.txt", "1"), ("b/x.txt", "2"), ("a/deep/y.txt", "3")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    named = file_hashes([tmp_path / "a" / "x.txt", tmp_path / "b" / "x.txt", tmp_path / "a" / "deep" / "y.txt"])
    assert list(named) == ["a/x.txt", "b/x.txt", "y.txt"]
    assert named["b/x.txt"] == contents_hash(tmp_path / "b" / "x.txt") == hashlib.sha256(b"2").hexdigest()
    # A folder is its files and their places in it, wherever it is.
    whole = contents_hash(tmp_path / "a")
    assert contents_hash(shutil.copytree(tmp_path / "a", tmp_path / "c")) == whole
    (tmp_path / "c" / "deep").rename(tmp_path / "c" / "deeper")
    assert contents_hash(tmp_path / "c") != whole
    assert contents_hash(tmp_path / "nowhere") is contents_hash(None) is None


def test_a_full_disk_leaves_the_state_before_and_remove_takes_what_runs_left_and_nothing_else(tmp_path):
    checkpoint = Checkpoint(tmp_path / "model", "run")
    checkpoint.save({"step": 1})
    with full_disk(100_000), pytest.raises(UnwritableError, match=r"cannot write .*checkpoint.pt: File too large"):
        checkpoint.save({"weights": torch.zeros(1_000_000)})
    assert checkpoint.load() == {"step": 1}
    assert [path.name for path in checkpoint.folder.iterdir()] == ["checkpoint.pt"]
    (checkpoint.folder / ".checkpoint.pt.killed").write_bytes(b"half")
    checkpoint.remove()
    assert not checkpoint.folder.exists()
    checkpoint.save({"step": 1})
    (checkpoint.folder / "notes.txt").write_text("mine")
    checkpoint.remove()
    assert [path.name for path in checkpoint.folder.iterdir()] == ["notes.txt"]


# Labelled texts


def test_hashes_by_hand():
    digest = hashlib.blake2b(b"it s a joy", digest_size=8).digest()
    assert text_hash("It's a JOY!") == int.from_bytes(digest, "little")
    assert text_hash(" ... ") is None
    hashes = hashes_of(["one", "two", "ONE.", "", "three"])
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == sorted({text_hash("one"), text_hash("two"), text_hash("three")})
    assert are_known(["Two", "four", "", "one"], hashes).tolist() == [True, False, False, True]
    assert are_known([], hashes).tolist() == []
    assert joined(None, hashes_of(["one"]), hashes_of(["two", "one"])).tolist() == hashes_of(["one", "two"]).tolist()
    assert joined(None, hashes_of([])) is None


def test_the_default_model_knows_its_labelled_texts(shipped_model):
    hashes = np.load(DEFAULT_MODEL / "labelled_texts.npy")
    assert len(hashes) > 100_000
    assert (hashes[1:] > hashes[:-1]).all()
    assert (shipped_model[0].labelled_texts == hashes).all()
    assert (untrained("mean")[0].labelled_texts == hashes).all()


def test_they_are_those_of_the_files_that_its_record_names(data):
    labelled = json.loads((DEFAULT_MODEL / "first-stage.json").read_text(encoding="utf-8"))["labelled"]
    hashes = np.load(DEFAULT_MODEL / "labelled_texts.npy")
    excluded = read_excluded([*data.glob("senteval/*.tsv"), *data.glob("longdocs/*_test*.tsv.gz")])
    for name in ("uci_amazon_cells_labelled.tsv", "pros_cons.tsv"):
        content = (data / "sentiment" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == labelled[name]
        lines = content.decode().splitlines()
        texts = [line.split("\t")[-1] for line in lines[::9]]
        assert are_known(texts, hashes).tolist() == [words_of(text) not in excluded for text in texts]
    for name in ("MR", "CR", "SUBJ", "MPQA"):
        lines = (data / "senteval" / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        assert not are_known([line.split("\t")[-1] for line in lines[::9]], hashes).any()


def test_an_evaluation_on_them_warns(tmp_path, tokenizer, sentences):
    file = tmp_path / "mine.tsv"
    rows = [f"{number % 2}\t{sentence} {number // 8}\n" for number, sentence in enumerate(sentences * 5)]
    file.write_text("".join(rows))
    model = make_model(tokenizer)
    model[0].labelled_texts = hashes_of([f"{sentences[0].upper()}, 3!", f"{sentences[5]} 1", "another"])
    model.save_pretrained(str(tmp_path / "mine"))
    told: list[str] = []
    encoders = [as_encoder(load(tmp_path / "mine"), "mine"), as_encoder(make_model(tokenizer), "other")]
    result = evaluate(encoders, str(file), options=EvaluationOptions("quick"), tell=told.append)
    (line,) = told
    assert line.startswith(f"{file}: 2 of 40 texts are among the labelled texts that mine was trained on; ")
    assert [entry["labelled"] for entry in result.report["results"]] == [2, 0]
    assert f"† {line}" in notes(json.loads(json.dumps(result.report)))


# Vocabularies


def entries(tokenizer: Tokenizer) -> list[str]:
    return sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)


def test_small_vocabularies_by_hand():
    # "ab" three times, "abb" twice, "c" once: a+##b stands five times, then ab+##b twice, and no other pair is left.
    tokenizer = learn_vocabulary(["ab ab AB", "Abb, ább", "c"], size=100, progress=False)
    assert entries(tokenizer) == ["[PAD]", "[UNK]", "##b", ",", "a", "b", "c", "ab", "abb"]
    assert tokenizer.encode("Ább, abbb d").tokens == ["abb", ",", "abb", "##b", "[UNK]"]
    assert [token.content for token in tokenizer.get_added_tokens_decoder().values()] == ["[PAD]", "[UNK]"]
    assert TextTokenizer(tokenizer).wordwise
    # Letters are the most frequent ones.
    few = learn_vocabulary(["a a b b d c e"], 100, letters=3, progress=False)
    assert entries(few) == ["[PAD]", "[UNK]", "a", "b", "c"]
    # The most frequent pairs come first.
    texts = ["xy " * 3001 + "pq " * 3000 + "mn"]
    letters = ["[PAD]", "[UNK]", "##n", "##q", "##y", "m", "n", "p", "q", "x", "y"]
    # A pair that occurs once is no word.
    for size, pairs in ((11, []), (12, ["xy"]), (13, ["xy", "pq"]), (99, ["xy", "pq"])):
        assert entries(learn_vocabulary(texts, size, progress=False)) == letters + pairs


def test_what_no_vocabulary_is_learned_from():
    message = "size must be at least 7, one entry for each letter of the texts, got 5"
    assert error(learn_vocabulary, ["cat"], 5, progress=False) == message
    assert learn_vocabulary(["cat"], 7, progress=False).get_vocab_size() == 7
    message = "the texts must have at least one word to learn a vocabulary from, got none"
    for texts in ([], [" \t", "\n"], ["\u0300", "\x00\x01"]):
        assert error(learn_vocabulary, texts, 100, progress=False) == message

    # Texts are read once, and an error among them goes through.
    def broken():
        yield "the cat"
        raise InputError("line 2 is broken")

    assert error(learn_vocabulary, broken(), 100, progress=False) == "line 2 is broken"
    learned = learn_vocabulary(iter(["the cat", "the cat \ud800"]), 100, progress=False)
    assert learned.encode("the cat").tokens == ["the", "cat"]


DETERMINISM = """
import random, hashlib
from ctx_embed.training.vocabulary import learn_vocabulary
draw = random.Random(0)
texts = ["".join(draw.choices("abcdefgh", k=4)) + " " + chr(0x4e00 + n) for n in range(1500)]
for order in (texts, texts[::-1]):
    print(hashlib.sha256(learn_vocabulary(order, 2000, progress=False).to_str().encode()).hexdigest())
"""


def test_the_same_texts_give_the_same_vocabulary_in_every_process():
    # The library draws the seeds of its hash tables anew in each process, and there are many ties here.
    command = [sys.executable, "-c", DETERMINISM]
    hashes = {line for _ in range(2) for line in subprocess.check_output(command, text=True).split()}
    assert len(hashes) == 1


def test_a_tokenizer_that_cannot_be_read(tmp_path):
    path = tmp_path / "tokenizer.json"
    missing = f"{path}: no such file; make a tokenizer.json with ctx-embed vocab FILE -o {path}"
    assert error(read_vocabulary, path) == missing
    for content in (b"garbage", b"\xff\xfe", b"{}"):
        path.write_bytes(content)
        assert error(read_vocabulary, path).startswith(f"{path}: no tokenizer (")
    # Without an unknown token it is refused before any work.
    message = f"{path}: must have an unknown token for words that it lacks{{}}, got none; add it, or make a tokenizer"
    for model, named in (
        (WordPiece({"the": 0}, unk_token="[UNK]"), " ([UNK])"),
        (BPE({"t": 0}, [], unk_token="<unk>"), " (<unk>)"),
        (Unigram([("the", 0.0)]), ""),
    ):
        Tokenizer(model).save(str(path))
        assert error(read_vocabulary, path).startswith(message.format(named))
    for ids in ({"[UNK]": 0, "the": 2}, {"[UNK]": 0, "the": 1, "cat": 3, "sat": 4}):
        Tokenizer(WordPiece(ids, unk_token="[UNK]")).save(str(path))
        gaps = f"got {len(ids)} entries with ids up to {max(ids.values())}"
        assert error(read_vocabulary, path) == f"{path}: the tokenizer's ids must have no gaps, {gaps}"
    # One that leaves out what it lacks is read.
    Tokenizer(BPE({"t": 0}, [])).save(str(path))
    assert read_vocabulary(path).encode("Ж").tokens == []
