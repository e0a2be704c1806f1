import pytest

from ctx_embed.classify.labelled import Labelled
from tests.training.toy import forty_texts, small_encoders


@pytest.fixture
def data() -> Labelled:
    return forty_texts()


@pytest.fixture
def encoder(data):
    return small_encoders(data)
