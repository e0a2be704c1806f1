import hashlib
import json

import numpy as np

from ctx_embed import load
from ctx_embed.encoders import as_encoder
from ctx_embed.eval.evaluation import EvaluationOptions, evaluate
from ctx_embed.eval.reports import notes
from ctx_embed.loading import DEFAULT_MODEL
from ctx_embed.systems import untrained
from ctx_embed.training.labelled_texts import are_known, hashes_of, joined, text_hash
from tests.conftest import make_model


def test_hashes_by_hand():
    digest = hashlib.blake2b(b"it s a joy", digest_size=8).digest()
    assert text_hash("It's a JOY!") == int.from_bytes(digest, "little")
    assert text_hash(" ... ") is None
    hashes = hashes_of(["one", "two", "ONE.", "", "three"])
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == sorted({text_hash("one"), text_hash("two"), text_hash("three")})
    assert are_known(["Two", "four", "", "one"], hashes).tolist() == [True, False, False, True]
    assert are_known([], hashes).tolist() == []
    assert joined(None, hashes_of(["one"]), hashes_of(["two", "one"])).tolist() == hashes_of(["one", "two"]).tolist()
    assert joined(None, hashes_of([])) is None


def test_the_default_model_knows_its_labelled_texts():
    hashes = np.load(DEFAULT_MODEL / "labelled_texts.npy")
    assert len(hashes) > 100_000
    assert (hashes[1:] > hashes[:-1]).all()
    assert (load(device="cpu")[0].labelled_texts == hashes).all()
    assert (untrained("mean")[0].labelled_texts == hashes).all()


def test_they_are_those_of_the_files_that_its_record_names(data):
    labelled = json.loads((DEFAULT_MODEL / "second-stage.json").read_text(encoding="utf-8"))["labelled"]
    hashes = np.load(DEFAULT_MODEL / "labelled_texts.npy")
    for name in ("uci_amazon_cells_labelled.tsv", "pros_cons.tsv"):
        content = (data / "sentiment" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == labelled[name]
        lines = content.decode().splitlines()
        assert are_known([line.split("\t")[-1] for line in lines], hashes).all()
    for name in ("MR", "CR", "SUBJ", "MPQA"):
        lines = (data / "senteval" / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
        assert not are_known([line.split("\t")[-1] for line in lines], hashes).any()


def test_an_evaluation_on_them_warns(tmp_path, tokenizer, sentences):
    file = tmp_path / "mine.tsv"
    rows = [f"{number % 2}\t{sentence} {number // 8}\n" for number, sentence in enumerate(sentences * 5)]
    file.write_text("".join(rows))
    model = make_model(tokenizer)
    model[0].labelled_texts = hashes_of([f"{sentences[0].upper()}, 3!", f"{sentences[5]} 1", "another"])
    model.save_pretrained(str(tmp_path / "mine"))
    told: list[str] = []
    encoders = [as_encoder(load(tmp_path / "mine"), "mine"), as_encoder(make_model(tokenizer), "other")]
    result = evaluate(encoders, str(file), options=EvaluationOptions("quick"), tell=told.append)
    (line,) = told
    assert line.startswith(f"{file}: 2 of 40 texts are among the labelled texts that mine was trained on; ")
    assert [entry["labelled"] for entry in result.report["results"]] == [2, 0]
    assert f"† {line}" in notes(json.loads(json.dumps(result.report)))
