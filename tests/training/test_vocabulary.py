import subprocess
import sys

from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordPiece

from ctx_embed.errors import InputError
from ctx_embed.text.tokenizer import is_wordwise
from ctx_embed.training.vocabulary import learn_vocabulary, read_tokenizer
from tests.helpers.errors import error


def entries(tokenizer: Tokenizer) -> list[str]:
    return sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)


def test_a_small_vocabulary_by_hand():
    # "ab" three times, "abb" twice, "c" once: a+##b stands five times, then ab+##b twice, and no other pair is left.
    tokenizer = learn_vocabulary(["ab ab AB", "Abb, ább", "c"], size=100, progress=False)
    assert entries(tokenizer) == ["[PAD]", "[UNK]", "##b", ",", "a", "b", "c", "ab", "abb"]
    assert tokenizer.encode("Ább, abbb d").tokens == ["abb", ",", "abb", "##b", "[UNK]"]
    assert [token.content for token in tokenizer.get_added_tokens_decoder().values()] == ["[PAD]", "[UNK]"]
    assert is_wordwise(tokenizer)
    # Letters are the most frequent ones.
    few = learn_vocabulary(["a a b b d c e"], 100, letters=3, progress=False)
    assert entries(few) == ["[PAD]", "[UNK]", "a", "b", "c"]


def test_the_most_frequent_pairs_come_first():
    texts = ["xy " * 3001 + "pq " * 3000 + "mn"]
    letters = ["[PAD]", "[UNK]", "##n", "##q", "##y", "m", "n", "p", "q", "x", "y"]
    assert entries(learn_vocabulary(texts, size=11, progress=False)) == letters
    assert entries(learn_vocabulary(texts, size=12, progress=False)) == [*letters, "xy"]
    assert entries(learn_vocabulary(texts, size=13, progress=False)) == [*letters, "xy", "pq"]
    # A pair that occurs once is no word.
    assert entries(learn_vocabulary(texts, size=99, progress=False)) == [*letters, "xy", "pq"]


def test_a_size_too_small_for_the_letters():
    message = "size must be at least 7, one entry for each letter of the texts, got 5"
    assert error(learn_vocabulary, ["cat"], 5, progress=False) == message
    assert learn_vocabulary(["cat"], 7, progress=False).get_vocab_size() == 7
    message = "the texts must have at least one word to learn a vocabulary from, got none"
    for texts in ([], [" \t", "\n"], ["\u0300", "\x00\x01"]):
        assert error(learn_vocabulary, texts, 100, progress=False) == message


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


def test_texts_are_read_once_and_an_error_among_them_goes_through():
    def texts():
        yield "the cat"
        raise InputError("line 2 is broken")

    assert error(learn_vocabulary, texts(), 100, progress=False) == "line 2 is broken"
    learned = learn_vocabulary(iter(["the cat", "the cat \ud800"]), 100, progress=False)
    assert learned.encode("the cat").tokens == ["the", "cat"]


def test_a_tokenizer_that_cannot_be_read(tmp_path):
    path = tmp_path / "tokenizer.json"
    missing = f"{path}: no such file; make a tokenizer.json with ctx-embed vocab FILE -o {path}"
    assert error(read_tokenizer, path) == missing
    for content in (b"garbage", b"\xff\xfe", b"{}"):
        path.write_bytes(content)
        assert error(read_tokenizer, path).startswith(f"{path}: no tokenizer (")


def test_a_tokenizer_without_an_unknown_token_is_refused_before_any_work(tmp_path):
    path = tmp_path / "tokenizer.json"
    message = f"{path}: must have an unknown token for words that it lacks{{}}, got none; add it, or make a tokenizer"
    for model, named in (
        (WordPiece({"the": 0}, unk_token="[UNK]"), " ([UNK])"),
        (BPE({"t": 0}, [], unk_token="<unk>"), " (<unk>)"),
        (Unigram([("the", 0.0)]), ""),
    ):
        Tokenizer(model).save(str(path))
        assert error(read_tokenizer, path).startswith(message.format(named))
    # One that leaves out what it lacks is read.
    Tokenizer(BPE({"t": 0}, [])).save(str(path))
    assert read_tokenizer(path).encode("Ж").tokens == []
