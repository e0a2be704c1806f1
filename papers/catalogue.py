"""The experiments by name."""

from ctx_embed.errors import unknown_name
from papers.attended_words import LAMA_FIGURE2, LAMA_TABLE4
from papers.complexity import TABLE1
from papers.experiment import Experiment
from papers.lama import LAMA_FIGURE3, LAMA_FIGURE4, LAMA_FIGURE5, LAMA_TABLE3
from papers.pretraining import PRETRAINING
from papers.settling import SETTLING
from papers.tables import FIGURE2, TABLE2, TABLE3, TABLE4

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        TABLE1,
        TABLE2,
        TABLE3,
        TABLE4,
        FIGURE2,
        SETTLING,
        PRETRAINING,
        LAMA_TABLE3,
        LAMA_TABLE4,
        LAMA_FIGURE2,
        LAMA_FIGURE3,
        LAMA_FIGURE4,
        LAMA_FIGURE5,
    )
}


def find_experiment(name: str) -> Experiment:
    """Return the experiment of that name."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
