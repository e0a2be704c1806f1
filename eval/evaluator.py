"""A probe as an evaluator of sentence-transformers, for its trainer."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from ctx_embed.errors import InputError, unknown_name
from ctx_embed.eval.encoders import EmbeddingCache, as_encoder
from ctx_embed.eval.scoring import score as scoring
from ctx_embed.eval.scoring.probes import PROTOCOLS, ProtocolName
from ctx_embed.eval.scoring.score import Examples
from ctx_embed.reading.rows import read_labelled
from ctx_embed.texts import as_texts


class ProbeEvaluator(SentenceEvaluator):
    """The accuracy of a probe on the model's embeddings, for ``SentenceTransformerTrainer(evaluator=...)``.

    A call returns ``{NAME_accuracy, NAME_std}`` as fractions of 1.

    Args:
        labels: one label for each text; a list, array, series or generator.
        texts: the texts to classify, likewise.
        name: prefix of the metrics' names.
        protocol: as for :class:`ctx_embed.eval.EvaluationOptions`, without ``paper``.
        seed: seed of the folds.

    Raises:
        InputError: labels and texts differ in number, or the protocol is unknown.
    """

    def __init__(
        self,
        labels: Iterable[str],
        texts: Iterable[str],
        *,
        name: str = "",
        protocol: ProtocolName = "quick",
        seed: int = 0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        labels, texts = [str(label) for label in labels], as_texts(texts)
        if len(labels) != len(texts):
            raise InputError(f"there must be as many labels as texts, got {len(labels)} labels and {len(texts)} texts")
        if protocol not in PROTOCOLS:
            raise unknown_name("protocol", protocol, PROTOCOLS)
        self.examples = Examples(labels, [(text,) for text in texts], None)
        self.name, self.protocol, self.seed = name, protocol, seed
        self.primary_metric = "accuracy"

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> "ProbeEvaluator":
        """Return an evaluator over a ``label<TAB>text`` file; ``options`` are those of the class."""
        return cls(*read_labelled(path), **options)

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Score the model; the arguments are those of other sentence-transformers evaluators."""
        assert isinstance(model, SentenceTransformer)
        embed = EmbeddingCache(as_encoder(model, self.name or "model"))
        score = scoring.score_probe(self.examples, embed, PROTOCOLS[self.protocol], self.seed)
        scores = {"accuracy": score.mean / 100, "std": score.std / 100}
        metrics = self.prefix_name_to_metrics(scores, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics
