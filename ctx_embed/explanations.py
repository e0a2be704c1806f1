"""Explanations: how much each token contributes to an embedding, as numbers, in the terminal and as one HTML page.

Called by ``ctx-embed explain``. The page shows what the terminal shows, and needs no other file and no script.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, naming_left_out, quoted
from ctx_embed.files import replaced_file, require_file
from ctx_embed.model import Model, Read
from ctx_embed.numpy_model.embedder import Ids
from ctx_embed.text.tokenizer import TextTokenizer
from ctx_embed.texts import as_texts, require_explainable, well_formed
from ctx_embed.vectors import unit_rows

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ctx_embed.model import Given

__all__ = [
    "ContextPath",
    "Contributions",
    "Explanation",
    "Nearest",
    "attention_weights",
    "contributions",
    "explain",
    "nearest",
    "write",
]

# Characters of the text in the repr of an explanation.
SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class ContextPath:
    """How a Contextualizer's context moved from c^0 to c^K.

    Attributes:
        context_norms: ||c^k||, k = 0..K.
        correction_norms: ||z^k||, k = 1..K.
        to_previous: cos(c^{k-1}, c^k), k = 1..K.
        to_last: cos(c^k, c^K), k = 0..K.
    """

    context_norms: tuple[float, ...]
    correction_norms: tuple[float, ...]
    to_previous: tuple[float, ...]
    to_last: tuple[float, ...]

    def rows(self) -> list[list[str]]:
        """Return k, ||c^k||, ||z^k|| and both cosines as text, for each k; the first has no update."""
        columns = (self.context_norms, (None, *self.correction_norms), (None, *self.to_previous), self.to_last)
        return [
            [str(k), *("" if number is None else f"{number:.3f}" for number in numbers)]
            for k, numbers in enumerate(zip(*columns, strict=True))
        ]


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The weights that a model gives the tokens of a text.

    Attributes:
        text: the text.
        tokens: n vocabulary entries, including those of the model's default prompt.
        weights: float32; the last axis runs over the tokens, see :func:`ctx_embed.attention_weights`.
        axes: the names of the axes: ``("step", "token")`` for a Contextualizer, ``("head", "token")`` for encoders with
            heads.
        path: the path of a Contextualizer's context; None for other encoders, and if the model cannot read the text.
    """

    text: str
    tokens: tuple[str, ...]
    weights: NDArray[np.float32]
    axes: tuple[str, ...]
    path: ContextPath | None = None

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= SHOWN_CHARACTERS else f"{self.text[: SHOWN_CHARACTERS - 1]}…"
        return f"Explanation({shown!r}, {len(self.tokens)} tokens, axes {self.axes})"

    def _repr_html_(self) -> str | None:
        try:
            return html([self], page=NOTEBOOK)
        except InputError:  # without rich, notebooks show the text
            return None

    @property
    def between_tokens(self) -> bool:
        """Whether each token attends to all tokens with its own weights (n, n), as in self-attention."""
        return self.axes[-2:] == ("token", "token")

    def parts(self) -> list[tuple[str, NDArray[np.float32]]]:
        """Return each step or head by name (``layer 1, head 2``) with its weights: (n,), or (n, n) between tokens.

        Self-attention without heads is one part, ``attention``.
        """
        leading = len(self.axes) - 1 - self.between_tokens
        names = self.axes[:leading]
        return [
            (
                ", ".join(f"{name} {i + 1}" for name, i in zip(names, place, strict=True)) or "attention",
                self.weights[place],
            )
            for place in product(*map(range, self.weights.shape[:leading]))
        ]

    def rows(self) -> list[tuple[str, NDArray[np.float32]]]:
        """Return the parts with (n,) weights each; weights between tokens are averaged over the attending tokens."""
        if not self.between_tokens:
            return self.parts()
        return [(name, weights.mean(0) if len(weights) else weights.sum(0)) for name, weights in self.parts()]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        path = None if self.path is None else {name: list(values) for name, values in vars(self.path).items()}
        listed = {"tokens": list(self.tokens), "axes": list(self.axes), "weights": self.weights.tolist()}
        return {"text": self.text, **listed, "path": path}


@dataclass(frozen=True, eq=False)
class Contributions:
    """The exact contribution of each token to each update z^k of a Contextualizer.

    Attributes:
        tokens: n vocabulary entries.
        vectors: (n, K, m) float64; their sum over the tokens plus ``bias`` is ``corrections``.
        bias: (K, m) the biases of the layer normalisations; zero for a text without tokens.
        corrections: (K, m) the updates z^k = c^k - c^{k-1}.
        first: (m,) c^0. The sentence embedding before normalisation is c^K = ``first + corrections.sum(0)``.
    """

    tokens: tuple[str, ...]
    vectors: NDArray[np.float64]
    bias: NDArray[np.float64]
    corrections: NDArray[np.float64]
    first: NDArray[np.float64]


@dataclass(frozen=True)
class Nearest:
    """What a token of a query finds in a passage: its nearest token there, and their cosine (-1 to 1).

    ``weight`` (0 to 1) is the token's part of what all of them add to the query's embedding. A search also weighs how
    few of the passages that it looks at have the token, see :mod:`ctx_embed.numpy_model.late`.
    """

    token: str
    weight: float
    found: str
    cosine: float


def explain(model: Given, text: str) -> Explanation:
    """Return the weights of a text's tokens. The result is empty if the model knows none of them.

    Args:
        model: an Embedder, or a SentenceTransformer whose first module is a system of ctx_embed.
        text: at most 20,000 characters; the model's default prompt is added, as by ``encode``.

    Raises:
        InputError: the model's first module is not a system of ctx_embed or has no weights; the text is not a string or
            is too long.
    """
    require_explainable(text)
    (found,) = attention_weights(model, [text])
    return found


def attention_weights(model: Given, texts: Iterable[str]) -> list[Explanation]:
    """Return how much each token of each text contributes to its embedding.

    The meaning of the weights depends on the system; ``axes`` names it. (step, token) for a Contextualizer: the exact
    share of each token in the update z^k, summing to 1, negative where a token works against the others. (head, token)
    for systems with heads, and for the mean, 1/n. (token, token) for self-attention and (layer, head, token, token) for
    Transformers: row i is what token i looks at; these take memory quadratic in the length of the text. (share, token)
    for max pooling (bigru, cnn): the share of the features that each token wins.

    Args:
        model: an Embedder, or a SentenceTransformer whose first module is a system of ctx_embed.
        texts: a list, array, series or generator; read with the model's default prompt, as by ``encode``.

    Raises:
        InputError: the model's first module is no such system or has no attention weights; ``texts`` are not strings.
    """
    texts, given = as_texts(texts), Model.of(model)
    if (read := given.read(texts)) is None:
        from ctx_embed.systems.attention import attention_weights as weights_of

        return [
            Explanation(text, *of_text) for text, of_text in zip(texts, weights_of(given.backend, texts), strict=True)
        ]
    contextualizer, tokenizer, ids, lengths = read
    entries, found = tokenizer.entry_texts(), []
    for text, end, length in zip(texts, lengths.cumsum(), lengths, strict=True):
        own = ids[end - length : end]
        _, shares, contexts = contextualizer.contributions(own)
        path = None
        if length:
            units = unit_rows(contexts)
            path = ContextPath(
                tuple(np.linalg.norm(contexts, axis=1).tolist()),
                tuple(np.linalg.norm(np.diff(contexts, axis=0), axis=1).tolist()),
                tuple((units[:-1] * units[1:]).sum(1).tolist()),
                tuple((units @ units[-1]).tolist()),
            )
        tokens = tuple(entries[token] for token in own.tolist())
        found.append(Explanation(text, tokens, shares.astype(np.float32), ("step", "token"), path))
    return found


def contributions(model: Given, text: str) -> Contributions:
    """Return what each token of a text adds to each update z^k, as vectors (8 n K m bytes).

    A token's share in ``explain(model, text).weights`` is the projection of its vector on the sum of all, relative to
    the length of that sum.

    Args:
        model: an Embedder, or a SentenceTransformer whose first module is a Contextualizer.
        text: at most 20,000 characters; the model's default prompt is added, as by ``encode``.

    Raises:
        InputError: the model's first module is not a Contextualizer, or the text is too long.
    """
    contextualizer, tokenizer, ids, _ = _read(model, text)
    vectors, _, contexts = contextualizer.contributions(ids)
    bias = contextualizer.steps.bias.astype(np.float64)
    return Contributions(
        _entries(tokenizer, ids),
        np.ascontiguousarray(vectors.transpose(1, 0, 2)),
        bias if len(ids) else np.zeros_like(bias),
        np.diff(contexts, axis=0),
        contexts[0],
    )


def nearest(model: Given, query: str, passage: str) -> list[Nearest]:
    """Return what each token of a query finds in a passage, as searches compare them; empty if the model reads neither.

    Raises:
        InputError: the model's first module is not a Contextualizer, or a text is too long.
    """
    contextualizer, tokenizer, ids, lengths = _read(model, query, passage)
    (q, d), own = Model.of(model).documents([query, passage]), int(lengths[0])
    late = Model.of(model).late(query, q, [passage], d[None])
    if late is None or not lengths.all():
        return []
    added = contextualizer.added_by_tokens(ids[:own][: len(late.weights)])
    weights = np.maximum(added @ added.sum(0), 0)
    found = _entries(tokenizer, tokenizer([passage])[0][late.places[0]])
    columns = _entries(tokenizer, ids[:own]), (weights / weights.sum()).tolist(), found, late.cosines[0].tolist()
    return [Nearest(*values) for values in zip(*columns, strict=False)]


def _read(model: Given, *texts: str) -> Read:
    for text in texts:
        require_explainable(text)
    given = Model.of(model)
    read = given.read(texts)
    if read is None:
        first = type(given.backend[0]).__name__
        raise InputError(f"the model's first module must be a Contextualizer, got {first}")
    return read


def _entries(tokenizer: TextTokenizer, ids: Ids) -> tuple[str, ...]:
    texts = tokenizer.entry_texts()
    return tuple(texts[token] for token in ids.tolist())


# Pages and the terminal

# Colours of positive and negative weights, safe for the colour-blind (Okabe and Ito).
FOR = (0, 114, 178)
AGAINST = (213, 94, 0)
# Opacity of the deepest colour; text on it stays readable.
DEEPEST = 0.6
# The deepest colour is for weights of at least this many times the mean magnitude of their line.
EVEN = 2.0
# In a terminal, tokens below this share of the greatest weight are not coloured.
FAINTEST = 0.05
# Shown for a text that the model cannot read.
NOTHING = "nothing to explain: the model knows too few words of this text"
# Width of pages in characters.
WIDTH = 120
NOTEBOOK = '<pre style="line-height: normal">{code}</pre>'
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What the model looks at</title>
<style>:root {{ color-scheme: light dark; }} body {{ margin: 2rem; }} pre {{ overflow-x: auto; }}</style>
<h1>What the model looks at</h1>
<p>The number after a token is its weight in %: blue works for the result; orange, which is negative, against it. A
Contextualizer adds an update z<sup>k</sup> to its context in each of K steps: c<sup>k</sup> = c<sup>k-1</sup> +
z<sup>k</sup>; c<sup>K</sup> is the embedding. Each line is coloured on its own, and pale where its tokens weigh
alike.</p>
<pre>{code}</pre>
</html>
"""


def require_page(path: Path) -> None:
    """Raise an InputError for a file that cannot be written or does not end in .html."""
    if path.suffix.lower() != ".html":
        raise InputError(
            f"{path}: explanations are written as a page, got the ending {quoted(path.suffix)}; name FILE.html"
        )
    require_file(path)


def write(
    explanations: Sequence[Explanation], path: str | Path, model: str | None = None, *, contexts: bool = False
) -> None:
    """Write explanations into one page, atomically.

    Args:
        explanations: at least one.
        path: the file, which ends in .html; it needs no other file.
        model: the name to show for the model.
        contexts: whether to show the path of a Contextualizer's context, too.

    Raises:
        InputError: there are no explanations, or the file has another ending or cannot be written.
    """
    path = Path(path)
    require_page(path)
    if not explanations:
        raise InputError("explanations must not be empty, got none; give at least one")
    content = html(explanations, model, contexts=contexts).encode()
    with replaced_file(path) as beside:
        beside.write_bytes(content)


def html(
    explanations: Sequence[Explanation], model: str | None = None, *, contexts: bool = False, page: str = PAGE
) -> str:
    """Return a page, with what a terminal shows; ``model`` is the name to show for the model."""
    with naming_left_out("a page"):
        from rich.console import Console
        from rich.text import Text

    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor")
    if model is not None:
        console.print(Text(f"Model: {printable(model)}\n"))
    for explanation in explanations:
        console.print(renderable(explanation, contexts=contexts), "")
    return well_formed(console.export_html(code_format=page, inline_styles=True))


def shades(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the weights of a line scaled to -1 to 1, for their colours; a line of similar weights is pale."""
    greatest = np.abs(weights).max(initial=0)
    if not greatest > 0:
        return np.zeros(weights.shape)
    shades: NDArray[np.float64] = weights.astype(np.float64) / max(
        float(greatest), EVEN * float(np.abs(weights).mean())
    )
    return shades


def percent(weight: float) -> str:
    """Return a weight in %, without the sign of a rounded zero."""
    shown = f"{100 * weight:.0f}"
    return "0" if shown == "-0" else shown


def printable(token: str) -> str:
    """Return ``token`` with whitespace as spaces and other control characters as U+FFFD."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in token)


def renderable(explanation: Explanation, *, contexts: bool = False) -> RenderableType:
    """Return what ``rich.print`` shows: the text, a line of coloured tokens for each step or head, perhaps the path."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    # `Text` objects, because rich would interpret markup in strings.
    parts: list[RenderableType] = [
        Text(printable(explanation.text) if explanation.text.strip() else "(empty text)", style="bold")
    ]
    if explanation.tokens:
        lines = Table.grid(padding=(0, 2))
        lines.add_column(no_wrap=True)
        for name, weights in explanation.rows():
            line = Text()
            for token, weight, shade in zip(
                explanation.tokens, weights.tolist(), shades(weights).tolist(), strict=True
            ):
                base = FOR if shade > 0 else AGAINST
                red, green, blue = (round(255 - abs(shade) * DEEPEST * (255 - part)) for part in base)
                style = "" if abs(shade) < FAINTEST else f"black on rgb({red},{green},{blue})"
                line.append(printable(token), style=style).append(f" {percent(weight)}  ", style="dim")
            line.rstrip()
            lines.add_row(name, line)
        parts.append(lines)
    else:
        parts.append(Text(NOTHING if explanation.text.strip() else "nothing to explain"))
    if contexts and (path := explanation.path) is not None:
        table = Table("step k", "|c^k|", "|z^k|", "cos(c^k, c^(k-1))", "cos(c^k, c^K)", box=None, pad_edge=False)
        for row in path.rows():
            table.add_row(*row)
        parts.append(table)
    return Group(*parts)
