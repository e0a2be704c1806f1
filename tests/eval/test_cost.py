import numpy as np

from ctx_embed.encoders import Encoder
from ctx_embed.eval.cost import cost_of, measure, sample_of
from ctx_embed.eval.encoders import load_encoder
from ctx_embed.eval.tasks.data import TaskData
from tests.helpers.errors import error


def test_the_sample_is_drawn_evenly_without_judgements():
    data = {
        "MR": TaskData("", {"MR": [("1", f"text {i}") for i in range(6)]}),
        "adi": TaskData("", {"corpus": [("1", "paper"), ("2", "\ud800")], "qrels": [("1", "2", "3")]}),
    }
    assert sample_of(data) == [*(f"text {i}" for i in range(6)), "paper", "\ufffd"]
    assert sample_of(data, 3) == ["text 0", "text 3", "paper"]


def test_one_batch_is_not_counted_and_the_time_ends_it():
    seen: list[int] = []

    def encode(texts):
        seen.append(len(texts))
        return np.ones((len(texts), 2))

    texts = ["a"] * 600
    assert measure(Encoder("e", encode), texts).texts == 600
    assert seen == [256, 256, 256, 88]
    assert measure(Encoder("e", encode), texts, 0.0).texts == 256


def test_a_named_encoder_is_measured_in_a_process_of_its_own():
    cost = cost_of(load_encoder("random"), ["a text", "another"])
    assert (cost.texts, cost.parameters) == (2, 0)
    assert cost.texts_per_second > 0
    assert cost.peak_megabytes is None or 5 < cost.peak_megabytes < 2000
    lost = Encoder("model2vec:./lost", lambda texts: np.ones((len(texts), 1)), by_name=True)
    assert error(cost_of, lost, ["a"]).startswith("encoder 'model2vec:./lost': the cost could not be measured (")
