"""Forty labelled texts, and what tests of training compare."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import torch

from ctx_embed.classify.labelled import Labelled
from ctx_embed.options import declared, types_of

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


def other_values(options: type) -> Iterator[tuple[str, Any]]:
    """Yield each option that is a number, a choice or true or false, with another value than its default."""
    for field in declared(options):
        kind, default = types_of(options)[field.name], field.default
        if get_origin(kind) is Literal:
            yield field.name, next(choice for choice in get_args(kind) if choice != default)
        elif kind is bool:
            yield field.name, not default
        elif kind is int:
            yield field.name, (default or 2) + 1
        elif kind is float:
            yield field.name, default / 2 + 0.125
