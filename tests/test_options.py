"""Options that are declared refuse values of a wrong type, and numbers out of their range, by name."""

from dataclasses import MISSING, fields
from typing import Literal, get_origin

import pytest

from ctx_embed.errors import InputError
from ctx_embed.grep import Sources
from ctx_embed.index import following, query
from ctx_embed.index.build import Plan
from ctx_embed.options import declared, types_of
from ctx_embed.serving.settings import Settings
from ctx_embed.training import options

STEPS = {"at least": -1, "above": 0, "at most": 1, "below": 0}
OF_INDEX = [following.FolderOptions, query.Options, Plan, Sources, Settings]
OF_TRAINING = [options.ContextualizerOptions, options.SupervisedOptions, options.DistillationOptions]


@pytest.mark.parametrize("of", [*OF_INDEX, *OF_TRAINING, options.TrainingJob, options.DistillationJob, options.Source])
def test_values_of_a_wrong_type_or_out_of_range_are_refused_by_name(of):
    needed = {known.name: None for known in fields(of) if known.default is known.default_factory is MISSING}
    tried = 0
    for known in declared(of):
        kind, limits = types_of(of)[known.name], known.metadata["limits"]
        wrong = {int: [1.5, True, "1"], float: ["1", float("nan"), True], bool: [1, "yes"]}.get(kind, [])
        wrong += ["no such"] * (get_origin(kind) is Literal)
        for value in (*wrong, *(limit + STEPS[word] for word, limit in limits.items())):
            tried += 1
            with pytest.raises(InputError, match=rf"\b{known.name}\b.*, got|unknown {known.name}\b"):
                of(**needed, **{known.name: value})
    assert tried > 1
