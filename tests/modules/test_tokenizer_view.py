"""What programs over transformers do with ``model.tokenizer``."""

import copy
import pickle

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from ctx_embed import Contextualizer
from ctx_embed.fingerprint import fingerprint
from tests.conftest import make_model

TEXT = "I don't know, said one of the men."


def test_it_is_a_fast_tokenizer_of_transformers(shipped_model):
    view, own = shipped_model.tokenizer, shipped_model[0].backend_tokenizer
    assert isinstance(view, PreTrainedTokenizerFast)
    assert len(view.vocab) == own.get_vocab_size()
    assert view.tokenize(TEXT) == own.encode(TEXT).tokens
    assert shipped_model.tokenizer is view
    # The first and the last id are padding.
    ids = view.encode("a cat", add_special_tokens=False)
    assert ids == own.encode("a cat").ids
    assert view.encode("a cat") == [view.pad_token_id, *ids, view.pad_token_id]
    assert view.decode(view.encode("unbelievably a cat"), skip_special_tokens=True) == "unbelievably a cat"


def test_ids_of_phrases_are_decoded(shipped_model):
    ids, read = shipped_model.preprocess([TEXT])["input_ids"][0].tolist(), "i don ' t know, said one of the men."
    assert max(ids) >= len(shipped_model.tokenizer)
    assert shipped_model.tokenizer.batch_decode([ids, ids[:1]]) == [read, "i don ' t know"]


def test_the_model_stays_the_same(shipped_model):
    before = fingerprint(shipped_model)
    assert shipped_model.tokenizer is not None
    assert fingerprint(shipped_model) == before
    for other in (copy.deepcopy(shipped_model), pickle.loads(pickle.dumps(shipped_model))):
        other.tokenizer = other.tokenizer
        assert fingerprint(other) == before
        ids = other.preprocess([TEXT])["input_ids"][0].tolist()
        assert other.tokenizer.decode(ids) == "i don ' t know, said one of the men."


def test_a_new_module_takes_the_view_for_the_tokenizer(tiny_model):
    module = Contextualizer(tiny_model.tokenizer, 8)
    assert module.backend_tokenizer.to_str() == tiny_model[0].backend_tokenizer.to_str()


def test_another_tokenizer_has_another_view(tokenizer):
    model = make_model(tokenizer)
    before = model.tokenizer
    content = tokenizer.to_str().replace('"lowercase":true', '"lowercase":false')
    assert content != tokenizer.to_str()
    model.tokenizer = Tokenizer.from_str(content)
    assert model.tokenizer is not before
    assert model.tokenizer.tokenize("THE") != ["the"] == before.tokenize("THE")


def test_a_vocabulary_without_padding_has_none():
    module = Contextualizer(Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="b")), 8)
    assert module.tokenizer.encode("a") == [0]
    assert module.tokenizer.pad_token is None
