"""Forty labelled texts, an encoder of a few parameters, and what tests of training from labels compare."""

from collections.abc import Callable

import torch
from sentence_transformers import SentenceTransformer

from ctx_embed.classify.labelled import Labelled
from ctx_embed.training.options import SupervisedOptions
from ctx_embed.training.supervised.train import new_encoder

GOOD = ["joy", "good", "fine", "glad"]
BAD = ["dull", "bad", "sad", "poor"]
FRAMES = ["a {} film", "the book is {}", "{} from first to last", "the night was {} and long", "so {}"]
OPTIONS = SupervisedOptions(epochs=4, batch_size=8, learning_rate=0.02)


def forty_texts() -> Labelled:
    """Forty texts whose words tell the label."""
    words = {"+": GOOD, "-": BAD}
    rows = [(label, frame.format(word)) for label in words for word in words[label] for frame in FRAMES]
    return Labelled(*zip(*rows, strict=True))


def small_encoders(data: Labelled) -> Callable[..., SentenceTransformer]:
    """Makes small encoders over the words of the texts."""

    def make(**options) -> SentenceTransformer:
        architecture = {"dimension": 8, "steps": 2, "rank": 3, **options}
        return new_encoder(None, data.texts, vocabulary_size=150, device="cpu", **architecture)

    return make


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())
