"""A model's tokenizer as a Hugging Face tokenizer, for counting, splitting and decoding."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer, decoders, processors
from transformers import PreTrainedTokenizerFast

from ctx_embed.text.phrases import Phrases

# A limit that no text exceeds; transformers warns about longer texts.
UNLIMITED = 10**30
PADDING_TOKENS = ("[PAD]", "<pad>")


class TokenizerView(PreTrainedTokenizerFast):
    """A fast tokenizer of transformers that can also decode ids of phrases; :func:`tokenizer_view` makes it."""

    # The viewed tokenizer and phrases, set by :func:`tokenizer_view`.
    original: Tokenizer
    phrases: Phrases | None = None

    def _entries(self, number: int) -> list[int]:
        """Return the entries of the tokenizer that an id of the model stands for."""
        if self.phrases is None or number < self.phrases.entries:
            return [number]
        first, second = self.phrases.pairs[number - self.phrases.entries].tolist()
        return [*self._entries(first), *self._entries(second)]

    def _decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str:
        ids = token_ids["input_ids"] if isinstance(token_ids, dict) else token_ids
        ids = [ids] if isinstance(ids, int) else ids
        entries = [entry for number in ids for entry in self._entries(int(number))]
        text: str = super()._decode(entries, *args, **kwargs)
        return text


def tokenizer_view(tokenizer: Tokenizer, phrases: Phrases | None) -> TokenizerView:
    """Return a tokenizer of transformers over a copy of ``tokenizer``.

    A text's tokens are those of ``tokenizer`` (phrases are not merged) between two padding tokens, since some programs,
    such as LangChain's token splitter, drop the first and the last id. ``decode`` also accepts ids of phrases.
    """
    content = tokenizer.to_str()
    copy, model = Tokenizer.from_str(content), json.loads(content)["model"]
    padding = next((token for token in PADDING_TOKENS if copy.token_to_id(token) is not None), None)
    if copy.post_processor is None and padding is not None:
        copy.post_processor = processors.TemplateProcessing(
            single=f"{padding} $A {padding}",
            pair=f"{padding} $A {padding} $B {padding}",
            special_tokens=[(padding, copy.token_to_id(padding))],
        )
    if copy.decoder is None and model["type"] == "WordPiece":
        copy.decoder = decoders.WordPiece(prefix=model["continuing_subword_prefix"])
    unknown = model.get("unk_token")
    view: TokenizerView = TokenizerView(  # type: ignore[no-untyped-call]
        tokenizer_object=copy,
        model_max_length=UNLIMITED,
        **({} if padding is None else {"pad_token": padding}),
        **({} if unknown is None else {"unk_token": unknown}),
    )
    view.original, view.phrases = tokenizer, phrases
    return view
