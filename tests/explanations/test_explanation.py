import io
import json
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
import torch
from rich.console import Console
from sentence_transformers import SentenceTransformer

import ctx_embed
from ctx_embed import explanations
from ctx_embed.explanations import ContextPath, Explanation, html, percent, renderable, shades
from ctx_embed.systems import system
from ctx_embed.vectors import unit_rows
from tests.conftest import SENTENCES, make_model
from tests.helpers.errors import error

OPTIONS = [
    {},
    {"positions": "absolute", "scale": "sum", "initial_context": "learned"},
    {"positions": "relative", "initial_context": "uniform", "steps": 1},
]
TEXTS = [SENTENCES[0], "cat", " ".join(SENTENCES), "A dull film without one good idea.", "word " * 3000]


def drawn(tokenizer, **options):
    model = make_model(tokenizer, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return model.eval()


def of_system(tokenizer, name, **options):
    torch.manual_seed(0)
    return SentenceTransformer(modules=[system(name)(tokenizer, 8, **options)], device="cpu")


@pytest.mark.parametrize("options", [None, *OPTIONS], ids=["shipped", 0, 1, 2])
@pytest.mark.parametrize("text", TEXTS, ids=range(5))
def test_contributions_sum_to_the_corrections_and_the_weights_are_their_shares(tokenizer, shipped_model, options, text):
    model = shipped_model if options is None else drawn(tokenizer, **options)
    parts, found = explanations.contributions(model, text), ctx_embed.explain(model, text)
    assert parts.tokens == found.tokens
    assert parts.bias.shape == parts.corrections.shape
    whole = parts.vectors.sum(0)
    np.testing.assert_allclose(whole + parts.bias, parts.corrections, atol=1e-5)
    # The forward pass, in float32 and by a form of its own, arrives at the same.
    embedding = model[0](model[0].preprocess([text]))["sentence_embedding"][0].detach().numpy()
    np.testing.assert_allclose(parts.first + parts.corrections.sum(0), embedding, rtol=1e-4, atol=1e-4)
    shares = np.einsum("nkm,km->kn", parts.vectors, whole) / (whole**2).sum(1)[:, None]
    np.testing.assert_allclose(found.weights, shares, atol=1e-6)


def test_the_path_is_that_of_the_contexts(tokenizer):
    model = drawn(tokenizer, steps=3, initial_context="learned")
    module = model[0]
    ids = module.preprocess([SENTENCES[0]])["input_ids"].flatten()
    contexts = module.attention(module.embedding(ids), ids, torch.tensor([0, len(ids)]))[:, 0].detach().numpy()
    path = ctx_embed.explain(model, SENTENCES[0]).path
    norms = np.linalg.norm(contexts, axis=1)
    cosines = (contexts / norms[:, None]) @ (contexts / norms[:, None]).T
    np.testing.assert_allclose(path.context_norms, norms, rtol=1e-5)
    np.testing.assert_allclose(path.correction_norms, np.linalg.norm(np.diff(contexts, axis=0), axis=1), rtol=1e-5)
    np.testing.assert_allclose(path.to_previous, np.diag(cosines, 1), atol=1e-5)
    np.testing.assert_allclose(path.to_last, cosines[-1], atol=1e-5)


def test_a_text_without_tokens_or_of_unknown_ones_has_no_explanation(tokenizer, shipped_model):
    found = ctx_embed.explain(make_model(tokenizer), " \n")
    assert (found.text, found.tokens, found.weights.shape, found.path) == (" \n", (), (2, 0), None)
    model = make_model(tokenizer)
    torch.nn.init.normal_(model[0].attention.bias)
    parts = explanations.contributions(model, " \n")
    assert parts.vectors.shape == (0, 2, 16)
    assert not parts.bias.any()
    assert (parts.first == 1).all()
    for text in ("日本語", "日本語 " * 50):
        found = ctx_embed.explain(shipped_model, text)
        assert (found.tokens, found.weights.shape, found.path) == ((), (3, 0), None)
        # A text is read if the model knows half of its words.
        assert "film" in ctx_embed.explain(shipped_model, text + " film" * len(text.split()) * 3).tokens


def test_rows_and_parts_by_name(tokenizer):
    found = ctx_embed.explain(of_system(tokenizer, "san", heads=3), SENTENCES[0])
    assert (found.path, found.between_tokens) == (None, False)
    assert list(dict(found.rows())) == ["head 1", "head 2", "head 3"]
    np.testing.assert_array_equal([weights for _, weights in found.rows()], found.weights)
    # Between tokens, rows are what each token gets.
    found = ctx_embed.explain(of_system(tokenizer, "transformer", layers=2, heads=2), SENTENCES[0])
    assert found.between_tokens
    assert list(dict(found.parts())) == [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2)]
    np.testing.assert_array_equal(found.parts()[2][1], found.weights[1, 0])
    np.testing.assert_allclose(found.rows()[2][1], found.weights[1, 0].mean(0))
    (attention,) = ctx_embed.explain(of_system(tokenizer, "self-attention"), SENTENCES[0]).parts()
    assert attention[0] == "attention"
    assert {len(row) for _, row in ctx_embed.explain(of_system(tokenizer, "transformer"), "").rows()} == {0}


def test_json_and_phrases_as_their_words(tokenizer):
    found = json.loads(json.dumps(ctx_embed.explain(make_model(tokenizer), "cat").to_dict()))
    assert list(found) == ["text", "tokens", "axes", "weights", "path"]
    assert found["axes"] == ["step", "token"]
    assert np.array(found["weights"]).shape == (2, len(found["tokens"]))
    sizes = {"context_norms": 3, "correction_norms": 2, "to_previous": 2, "to_last": 3}
    assert {name: len(values) for name, values in found["path"].items()} == sizes
    first, second, third = (tokenizer.token_to_id(token) for token in ("the", "cat", "on"))
    entries = tokenizer.get_vocab_size()
    model = make_model(tokenizer, phrases=[[first, second], [entries, third]])
    assert ctx_embed.explain(model, "the cat on the").tokens == ("the cat on", "the")


def test_each_token_of_a_query_finds_the_nearest_token_of_a_passage(shipped_model, embedder):
    query, passage = "storms on the coast", "The gale hit the harbour and the sea wall broke."
    found = explanations.nearest(shipped_model, query, passage)
    pairs = [(each.token, each.found) for each in found]
    assert pairs[::2] == [("storms", "gale"), ("coast", "sea")]
    assert [(each.token, each.found) for each in explanations.nearest(embedder, query, passage)] == pairs
    (q, d), packed = embedder.encode([query, passage]).astype(np.float64) / 2, embedder.contextualizer
    rows = [packed.table.rows(embedder.tokens([text])[0]).astype(np.float64) for text in (query, passage)]
    moved = [unit_rows(of) + context for of, context in zip(rows, (q, d), strict=True)]
    units = list(map(unit_rows, moved))
    assert [each.cosine for each in found] == pytest.approx((units[0] @ units[1].T).max(1), abs=1e-4)
    parts = explanations.contributions(embedder, query).vectors.sum(1)
    weights = np.maximum(parts @ parts.sum(0), 0)
    assert [each.weight for each in found] == pytest.approx(weights / weights.sum(), abs=1e-4)
    assert explanations.nearest(embedder, "", passage) == explanations.nearest(embedder, query, "") == []


def test_mistakes(tokenizer):
    long = "word " * 160_000
    for explain, *given in ((ctx_embed.explain,), (explanations.contributions,), (explanations.nearest, "cat")):
        # Before any work.
        assert "must have at most 20,000 characters to be explained, got 800,000" in error(explain, None, *given, long)
    said = "the text must be a string, got a list; explain texts one at a time"
    assert error(ctx_embed.explain, make_model(tokenizer), ["cat"]) == said
    assert "DeepAveraging has no attention weights" in error(ctx_embed.explain, of_system(tokenizer, "dan"), "cat")
    said = "the model's first module must be a Contextualizer, got StructuredSelfAttention"
    assert error(explanations.contributions, of_system(tokenizer, "san"), "cat") == said


PATH = ContextPath((4.0, 5.0, 6.0), (1.5, 2.5), (0.25, 0.5), (0.125, 0.75, 1.0))
WEIGHTS = np.array([[0.5, 0.75, -0.25], [0.01, 0.99, 0]], dtype=np.float32)
TWO = Explanation("a <b> & [red]$c$", ("a", "<b>", "$[red]$"), WEIGHTS, ("step", "token"), PATH)
NONE = Explanation("", (), np.zeros((2, 0), np.float32), ("step", "token"))
LAYERS = np.array([[[[0.9, 0.1], [0.3, 0.7]]]], np.float32)
BETWEEN = Explanation("x y", ("x", "y"), LAYERS, ("layer", "head", "token", "token"))
HOSTILE = Explanation("\x1b[2J\r\n\ud800", ("\x1b[2J", "\ud800"), np.array([[0.5, 0.5]], np.float32), ("head", "token"))


def shown(explanation, contexts=False, **options) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100, **options).print(renderable(explanation, contexts=contexts))
    return stream.getvalue()


def test_terminal_and_its_shades_from_minus_one_to_one():
    np.testing.assert_allclose(shades(WEIGHTS[1]), [0.01 / 0.99, 1, 0], rtol=1e-6)
    # The deepest colour is for twice the mean magnitude or more, so that an even line is pale.
    np.testing.assert_allclose(shades(WEIGHTS[0]), [0.5, 0.75, -0.25], rtol=1e-6)
    np.testing.assert_allclose(shades(np.full(9, 1 / 9, np.float32)), [0.5] * 9, rtol=1e-6)
    assert shades(np.zeros(3, np.float32)).tolist() == [0, 0, 0]
    assert shades(np.zeros(0, np.float32)).tolist() == []
    # Zero has no sign.
    assert (percent(-0.0), percent(-0.004), percent(-0.04)) == ("0", "0", "-4")
    assert [line.rstrip() for line in shown(TWO, contexts=True).splitlines()] == [
        "a <b> & [red]$c$",
        "step 1  a 50  <b> 75  $[red]$ -25",
        "step 2  a 1  <b> 99  $[red]$ 0",
        "step k  |c^k|  |z^k|  cos(c^k, c^(k-1))  cos(c^k, c^K)",
        "0       4.000                            0.125",
        "1       5.000  1.500  0.250              0.750",
        "2       6.000  2.500  0.500              1.000",
    ]
    assert len(shown(TWO).splitlines()) == 3
    assert "layer 1, head 1  x 60  y 40" in shown(BETWEEN)
    assert [line.rstrip() for line in shown(NONE).splitlines()] == ["(empty text)", "nothing to explain"]
    output = shown(HOSTILE)
    assert not {"\x1b", "\r"} & set(output)
    assert output.splitlines()[0].rstrip() == "�[2J  �"
    assert "head 1  �[2J 50  � 50" in output
    # Colours by sign, and none for the faintest.
    line = shown(TWO, force_terminal=True, color_system="truecolor").splitlines()
    assert "\x1b[30;48;2;140;192;220m<b>" in line[1]  # blue, the greatest
    assert re.search(r"\x1b\[30;48;2;249;\d+;\d+m\$\[red\]\$", line[1])  # orange
    assert re.search(r"(?<!m)a\x1b", line[2])  # 1 of 99 has none


def text_of(page: str) -> str:
    """Return what a page shows, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", page.partition("</style>")[2])).split())


def test_the_page_and_a_notebook_show_text_weights_and_path(tmp_path):
    page, path = html([TWO, NONE, BETWEEN, HOSTILE], "my <model>", contexts=True), "1 5.000 1.500 0.250 0.750"
    assert not re.search(r"<(script|link|img|iframe|b)\b|\b(src|href|onclick)=|url\(|@import", page)
    assert "color-scheme: light dark" in page
    for text in ("Model: my <model>", "a <b> & [red]$c$", "step 1 a 50 <b> 75 $[red]$ -25", path):
        assert text in text_of(page)
    assert "(empty text) nothing to explain x y layer 1, head 1 x 60 y 40" in text_of(page)
    assert path not in text_of(html([TWO]))
    assert re.findall(r"background-color: (#\w+)", page)[:3] == ["#b2d5e8", "#8cc0dc", "#f9e7d9"]
    assert repr(TWO) == "Explanation('a <b> & [red]$c$', 3 tokens, axes ('step', 'token'))"
    assert "…" in repr(replace(TWO, text="long " * 50))
    assert all(part in TWO._repr_html_() for part in ("<span style", "&lt;b&gt;"))
    HOSTILE._repr_html_().encode()
    explanations.write([TWO], tmp_path / "out.HTML", contexts=True)
    assert (tmp_path / "out.HTML").read_text(encoding="utf-8") == html([TWO], contexts=True)
    said = error(explanations.write, [TWO], tmp_path / "out.png")
    assert re.search(r"out\.png: explanations are written as a page, got .*; name FILE.html", said)
    assert error(explanations.write, [], tmp_path / "out2.html").startswith("explanations must not be empty, got none")
    assert [path.name for path in tmp_path.iterdir()] == ["out.HTML"]
    (tmp_path / "folder.html").mkdir()
    assert "folder.html" in error(explanations.require_page, tmp_path / "folder.html")
