"""Classifiers on a server, next to the model that embeds."""

from __future__ import annotations

import pytest

from tests.serving.server import get, post, serving

TEXTS = ["great food", "lovely staff", "cold soup", "rude waiter"]
LABELS = ["good", "good", "bad", "bad"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    from ctx_embed import TextClassifier

    folder = tmp_path_factory.mktemp("models") / "reviews"
    fitted = TextClassifier().fit(TEXTS, LABELS)
    fitted.save(folder)
    return folder, fitted


def test_a_classifier_is_served_by_the_name_of_its_folder(classifier):
    folder, fitted = classifier
    asked = ["friendly service", "a cold, rude place"]
    with serving("--model", "default", "--model", folder) as server:
        found = post(f"{server.url}/v1/classify", json={"model": "reviews", "input": asked}).json()
        assert found["model"] == "reviews"
        assert [row["prediction"] for row in found["data"]] == ["good", "bad"]
        for row, expected in zip(found["data"], fitted.predict_proba(asked), strict=True):
            assert [prediction["label"] for prediction in row["predictions"]] == ["bad", "good"]
            assert [prediction["score"] for prediction in row["predictions"]] == pytest.approx(list(expected), abs=1e-5)
            assert row["score"] == max(prediction["score"] for prediction in row["predictions"])
        models = {model["id"]: model for model in get(f"{server.url}/v1/models").json()["data"]}
        assert set(models) == {"default", "ctx-embed/default", "reviews"}
        assert models["reviews"]["labels"] == ["bad", "good"]
        for body, status in (({"model": "views"}, 404), ({"model": 5}, 400), ({"model": "reviews", "input": []}, 400)):
            answer = post(f"{server.url}/v1/classify", json={"input": "x", **body})
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")


def test_a_folder_without_labels_is_no_classifier(tiny_model_path):
    said = r"tiny: not a classifier \(no classifier\.safetensors\)"
    with pytest.raises(AssertionError, match=said), serving("--model", "default", "--model", tiny_model_path):
        pass
