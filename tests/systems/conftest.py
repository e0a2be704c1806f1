"""The systems under the options that the tests go through."""

import pytest
import torch

from ctx_embed.systems import system

SMALL = {
    "contextualizer": {"steps": 2, "rank": 3},
    "lama": {"heads": 4},
    "lama-ctx": {"heads": 3, "hidden": 5},
    "san": {"heads": 3, "attention_dimension": 6},
    "transformer": {"layers": 2, "heads": 2, "feedforward": 10},
    "use-transformer": {"layers": 1, "heads": 2, "feedforward": 10},
    "dan": {"layers": 3, "hidden": 7, "buckets": 50},
    "bigru": {"hidden": 5},
    "cnn": {"filters": 4},
    "attentive": {"locations": 6},
}
CASES = [
    ("contextualizer", {}),
    ("mean", {}),
    ("lama", {}),
    ("lama", {"context": "learned", "output_dimension": 6}),
    ("lama", {"hidden": 4}),
    ("lama", {"rank": 3, "layer": 5}),
    ("lama-ctx", {}),
    ("lama-ctx", {"context": "learned", "rank": 2, "layer": 4}),
    ("bilinear", {}),
    ("bilinear", {"context": "learned", "hidden": 3}),
    ("san", {}),
    ("san", {"hidden": 4, "output_dimension": 6, "penalty": 0.5}),
    ("transformer", {}),
    ("transformer", {"norm_first": True}),
    ("dan", {}),
    ("dan", {"layers": 1}),
    ("use-transformer", {}),
    ("bigru", {}),
    ("bigru", {"output_dimension": 6}),
    ("cnn", {}),
    ("cnn", {"widths": [1, 4], "output_dimension": 6}),
    ("self-attention", {}),
    ("self-attention-parametric", {}),
    *[("attentive", {"score": s}) for s in ("content", "additive", "location", "general", "dot", "scaled-dot")],
    ("attentive", {"score": "additive", "hidden": 3}),
]


def case_name(case) -> str:
    name, options = case
    return "-".join([name, *(f"{key}={value}" for key, value in options.items())])


@pytest.fixture(params=CASES, ids=case_name)
def case(request):
    return request.param


@pytest.fixture
def make(tokenizer):
    """Make a system of 8 dimensions in float64, every parameter drawn, in evaluation mode."""

    def drawn(name, **options):
        torch.manual_seed(0)
        module = system(name)(tokenizer, 8, **{**SMALL.get(name, {}), **options}).double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.5)
        return module.eval()

    return drawn
