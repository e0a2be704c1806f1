"""A small CrossEncoder."""

from pathlib import Path

from tokenizers import Tokenizer
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast


def save_cross_encoder(folder: Path, tokenizer: Tokenizer) -> Path:
    """Save a CrossEncoder with random weights in a folder, and return the folder."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = BertConfig(vocab_size=200, num_labels=1, **sizes)
    BertForSequenceClassification(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return folder
