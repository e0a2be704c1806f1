"""Forty labelled texts, and what tests of training compare."""

import torch

from ctx_embed.classify.labelled import Labelled

GOOD = ["joy", "good", "fine", "glad"]
BAD = ["dull", "bad", "sad", "poor"]
FRAMES = ["a {} film", "the book is {}", "{} from first to last", "the night was {} and long", "so {}"]


def forty_texts() -> Labelled:
    """Forty texts whose words tell the label."""
    words = {"+": GOOD, "-": BAD}
    rows = [(label, frame.format(word)) for label in words for word in words[label] for frame in FRAMES]
    return Labelled(*zip(*rows, strict=True))


def state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())
