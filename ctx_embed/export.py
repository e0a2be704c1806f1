"""Models for other programs: an ONNX graph, and static embeddings for model2vec and StaticEmbedding.

Called by ``ctx-embed export``. The graph takes token ids and offsets and returns embeddings.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, missing_extra
from ctx_embed.files import replaced_folder, require_replaceable
from ctx_embed.numpy_model.saved import SCALES, TABLE, SavedContextualizer
from ctx_embed.text.normalisation import CONTEXT, readings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ctx_embed.numpy_model import Embedder

OPSET = 18
# The newest version of the file format that onnxruntime reads with this opset.
IR_VERSION = 8
MODEL, TOKENIZER, PHRASE_PAIRS, CHARACTERS = "model.onnx", "tokenizer.json", "phrases.json", "characters.json"
NEAR = 2e-5
# A folder with this file holds static embeddings.
STATIC = "config.json"
# Texts on which graph and model are compared: words of several lengths, unknown words, an empty text between others,
# and a long text.
CHECKED = ["A film that nobody forgets.", "", "prices rise", "日本 ☃", "i don't know one of the men " * 50, "a"]


class _Graph:
    """Builds an ONNX graph: an operator, called with names of outputs and constants, returns its output's name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}

    def __getattr__(self, operator: str) -> Any:
        def add(*inputs: Any, **attributes: Any) -> str:
            from onnx import helper, numpy_helper

            names = []
            for value in inputs:
                name = value
                if not isinstance(value, str):
                    name = f"constant_{len(self.initializers)}"
                    self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
                names.append(name)
            output = f"value_{len(self.nodes)}"
            self.nodes.append(helper.make_node(operator, names, [output], **attributes))
            return output

        return add


def _floats(*values: float) -> Any:
    return np.array(values, np.float32)


def _ints(*values: int) -> Any:
    return np.array(values, np.int64)


def build(saved: SavedContextualizer, unknown: NDArray[np.int32]) -> Any:
    """Return the ONNX model of a saved Contextualizer; a text of ``unknown`` tokens alone keeps c^0.

    Inputs: ``input_ids`` (N,) int64, the texts' ids one after the other, phrases merged; ``offsets`` (B,) int64, where
    each text begins. Output: ``embeddings`` (B, m) float32, of length 1 if the model normalises.
    """
    from onnx import TensorProto, helper

    config, tensors = saved.config, saved.tensors
    m, K = config["dimension"], config["steps"]
    if config["initial_context"] == "uniform":
        said = 'initial_context="uniform" is random, seeded by a text\'s ids, which ONNX cannot do'
        raise InputError(f"{saved.folder}: {said}")
    g = _Graph()
    # The number of each token's text, from 0: one less than the number of texts that begin at or before the token.
    tokens, texts = g.Shape("input_ids"), g.Shape("offsets")
    begins = g.ScatterElements(
        g.Expand(_ints(0), g.Add(tokens, _ints(1))), "offsets", g.Expand(_ints(1), texts), reduction="add"
    )
    text_of = g.Slice(g.Sub(g.CumSum(begins, np.int64(0)), _ints(1)), _ints(0), tokens)
    ends = g.Concat(g.Slice("offsets", _ints(1), _ints(2**31 - 1)), tokens, axis=0)
    n = g.Unsqueeze(g.Cast(g.Sub(ends, "offsets"), to=TensorProto.FLOAT), _ints(1))
    rows = g.Unsqueeze(text_of, _ints(1))
    zeros = g.Expand(_floats(0), g.Concat(texts, _ints(m), axis=0))

    def total(values: str) -> str:
        """Return the sum of the tokens of each text, (B, m)."""
        indices = g.Expand(rows, g.Shape(values))
        return str(g.ScatterElements(zeros, indices, values, axis=0, reduction="add"))

    if SCALES in tensors.stored:
        levels = g.Cast(g.Gather(np.array(tensors.stored[TABLE]), "input_ids"), to=TensorProto.FLOAT)
        x = g.Mul(levels, g.Gather(tensors.floats(SCALES), "input_ids"))
    else:
        x = g.Gather(tensors.floats(TABLE), "input_ids")
    n_of_token = g.Gather(n, text_of)
    if config["positions"] != "none":
        s = tensors.floats("attention.s")
        counted = g.Cast(g.Range(np.int64(0), g.Squeeze(tokens), np.int64(1)), to=TensorProto.FLOAT)
        begin = g.Cast(g.Gather("offsets", text_of), to=TensorProto.FLOAT)
        i = g.Unsqueeze(g.Sub(counted, begin), _ints(1))  # from 0 to n - 1
        logits = g.Where(s > 0, g.Mul(g.Sub(g.Add(i, _floats(1)), n_of_token), s), g.Mul(i, s))
        weights = g.Exp(g.Div(logits, n_of_token) if config["positions"] == "relative" else logits)
        weights = g.Div(weights, g.Gather(total(weights), text_of))
        x = g.Mul(x, g.Mul(weights, n_of_token) if config["scale"] == "mean" else weights)
    elif config["scale"] == "sum":
        x = g.Div(x, n_of_token)
    first = tensors.floats("attention.c0") if config["initial_context"] == "learned" else np.ones(m, np.float32)
    context = g.Expand(first[None], g.Concat(texts, _ints(m), axis=0))
    U, V, W, b, gain, bias = (tensors.floats(f"attention.{name}") for name in ("U", "V", "W", "b", "gain", "bias"))
    # The steps change only texts with a token that the model knows; all other texts keep c^0.
    known = np.ones((len(tensors.stored[TABLE]), 1), bool)
    known[unknown] = False
    counted = g.Cast(g.Gather(known, "input_ids"), to=TensorProto.FLOAT)
    read = g.Greater(g.ScatterElements(g.Sub(n, n), rows, counted, axis=0, reduction="add"), _floats(0))
    for k in range(K):
        vc = g.Gather(g.MatMul(context, V[k].T), text_of)
        a = g.Add(g.MatMul(g.Mul(g.MatMul(x, U[k].T), vc), W[k].T), b[k])
        z = g.LayerNormalization(total(g.Mul(a, x)), gain[k], bias[k], epsilon=1e-12)
        context = g.Where(read, g.Add(context, z), context)
    if saved.normalize:
        length = g.Sqrt(g.ReduceSum(g.Mul(context, context), _ints(1)))
        context = g.Where(read, g.Div(context, g.Max(length, _floats(1e-12))), _floats(0))
    g.nodes.append(helper.make_node("Identity", [context], ["embeddings"]))
    takes = [("input_ids", TensorProto.INT64, ["tokens"]), ("offsets", TensorProto.INT64, ["texts"])]
    inputs = [helper.make_tensor_value_info(*each) for each in takes]
    outputs = [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["texts", m])]
    graph = helper.make_graph(g.nodes, "contextualizer", inputs, outputs, list(g.initializers.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def export_onnx(embedder: Embedder, output: str | Path) -> float:
    """Write a model into a folder for programs without ctx-embed, after comparing the graph with the model.

    ``characters.json`` says how a text is read before its tokenizer: ``read`` has what some characters stand for,
    ``context`` is the pattern of those that stay, become a space or are removed by what stands around them; then comes
    Unicode's NFC. See ``examples/onnx``.
    ``phrases.json`` is a list of pairs of ids. Pair p becomes the id ``entries + p``, where ``entries`` is the
    tokenizer's number of entries. Pairs are merged as in :class:`ctx_embed.text.tokenizer.Phrases`. Returns the largest
    difference between a feature computed by the graph and by the model, over a few texts.
    """
    try:
        import onnx
        import onnxruntime
    except ModuleNotFoundError as error:
        raise missing_extra(f"export onnx: {error.name}", "onnx") from None
    output = Path(output)
    require_replaceable(output, MODEL)
    saved = embedder.saved
    model = build(saved, embedder.text_tokenizer.unknown)
    onnx.checker.check_model(model)
    with replaced_folder(output) as folder:
        onnx.save(model, str(folder / MODEL))
        tokenizer = next(path for path in saved.files if path.name == TOKENIZER)
        (folder / TOKENIZER).write_bytes(saved.content(tokenizer))
        pairs = [] if saved.phrases is None else saved.phrases.tolist()
        (folder / PHRASE_PAIRS).write_text(json.dumps(pairs), encoding="utf-8")
        # JavaScript writes names of groups another way, so these have numbers.
        context = re.sub(r"\?P<\w+>", "", CONTEXT.pattern)
        (folder / CHARACTERS).write_text(json.dumps({"read": readings(), "context": context}), encoding="utf-8")
        session = onnxruntime.InferenceSession(str(folder / MODEL), providers=["CPUExecutionProvider"])
        ids, lengths = embedder.text_tokenizer(CHECKED)
        offsets = lengths.cumsum() - lengths
        (found,) = session.run(None, {"input_ids": ids.astype(np.int64), "offsets": offsets})
        ids, lengths = embedder.text_tokenizer.read(CHECKED)
        expected = embedder.finished(embedder.contextualizer.embed(ids, lengths), lengths, truncate_dim=found.shape[1])
        difference = float(np.abs(found - expected).max())
        if not difference <= NEAR * max(1.0, float(np.abs(expected).max())):
            raise InputError(f"{output}: the graph differs from the model by {difference:.1e}; nothing was written")
    return difference


def export_static(model: SentenceTransformer, output: str | Path) -> None:
    """Write a model of the system ``mean`` as a StaticEmbedding; model2vec leaves unknown tokens out of the mean."""
    try:
        from model2vec import StaticModel
    except ModuleNotFoundError as error:
        raise missing_extra(f"export static: {error.name}", "peers") from None
    from sentence_transformers.sentence_transformer.modules import Normalize

    from ctx_embed.systems.pooling import MeanEmbedding

    output = Path(output)
    require_replaceable(output, STATIC)
    module, *others = model.children()
    if not isinstance(module, MeanEmbedding) or not all(isinstance(other, Normalize) for other in others):
        raise InputError(
            f"the model must be of the system mean, got {type(module).__name__}; export a Contextualizer with "
            "`ctx-embed export onnx`"
        )
    if module.phrases is not None:
        raise InputError("the model has phrases, which model2vec and StaticEmbedding cannot read; train it without")
    if module.get_config_dict()["max_seq_length"] is not None:
        raise InputError("the model has a max_seq_length, which a static embedding cannot have; set it to None")
    table = module.table.detach().float().cpu().numpy()
    static = StaticModel(
        np.ascontiguousarray(table), module.text_tokenizer.tokenizer, normalize=bool(others), max_length=None
    )
    with replaced_folder(output) as folder:
        static.save_pretrained(folder, model_name=output.name)
