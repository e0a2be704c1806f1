"""Topics: clusters of the vectors of an index, each with its typical words and most central documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError
from ctx_embed.index.ann.exact import Rows
from ctx_embed.index.storage.documents import Id
from ctx_embed.index.storage.folder import IndexFolder
from ctx_embed.index.storage.snapshot import Snapshot

# The most vectors that the clusters are learned from, and the most passages whose words are counted.
SAMPLED_VECTORS, SAMPLED_PASSAGES = 100_000, 30_000
ROWS_AT_ONCE = 16_384
TYPICAL_WORDS, CENTRAL_DOCUMENTS = 8, 3


@dataclass(frozen=True)
class Topic:
    """A cluster: its number of passages, its typical words, and the ids and texts of its most central passages."""

    size: int
    words: list[str]
    examples: list[tuple[Id, str]]


def find_topics(folder: IndexFolder, count: int | None = None, seed: int = 0) -> list[Topic]:
    """Cluster the vectors by spherical k-means and return the clusters, largest first.

    Args:
        folder: the index.
        count: the number of clusters; by default the square root of half the number of passages, from 2 to 50.
        seed: the seed of k-means' random initialisation.

    Returns:
        At most ``count`` topics. The typical words of a topic have the highest f log(1 + A / F), where f is the
        frequency of a word in the topic, F that in all topics and A the average number of words of a topic
        (class-based TF-IDF, Grootendorst 2022).

    Raises:
        InputError: there are fewer passages than clusters, or a file is damaged.
    """
    return folder.read(lambda snapshot: _topics(folder, snapshot, count, seed))


def _topics(folder: IndexFolder, snapshot: Snapshot, count: int | None, seed: int) -> list[Topic]:
    live = np.flatnonzero(folder.documents.live(snapshot.rows))
    clusters = count or int(np.clip(round((len(live) / 2) ** 0.5), 2, 50))
    if len(live) < clusters:
        raise InputError(f"{folder.path}: {len(live)} passages cannot make {clusters} topics; ask for fewer")
    sample = folder.vectors.gather(snapshot.shards, _spread(live, SAMPLED_VECTORS))
    means = faiss.Kmeans(
        folder.manifest.dimension, clusters, niter=20, seed=seed + 1, spherical=True, min_points_per_centroid=1
    )
    means.train(sample)
    centres: Any = means.centroids
    topic_of = np.empty(len(live), np.int64)
    nearness = np.empty(len(live), np.float32)
    for first in range(0, len(live), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        scores = folder.vectors.gather(snapshot.shards, live[part]) @ centres.T
        topic_of[part], nearness[part] = scores.argmax(axis=1), scores.max(axis=1)
    typical = _typical_words(folder, live, topic_of, clusters)
    sizes = np.bincount(topic_of, minlength=clusters)
    topics = []
    for topic in np.argsort(-sizes, kind="stable"):
        if not sizes[topic]:
            continue
        members = np.flatnonzero(topic_of == topic)
        central = live[members[np.argsort(-nearness[members], kind="stable")[:CENTRAL_DOCUMENTS]]]
        passages = folder.documents.fetch(central.tolist())
        examples = [(passages[int(row)].document.id, passages[int(row)].text) for row in central]
        topics.append(Topic(int(sizes[topic]), typical[topic], examples))
    return topics


def _spread(rows: Rows, most: int) -> Rows:
    """Return at most ``most`` of some rows, evenly spaced."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows)), dtype=np.int64))]


def _typical_words(folder: IndexFolder, live: Rows, topic_of: NDArray[np.int64], clusters: int) -> list[list[str]]:
    from sklearn.feature_extraction.text import CountVectorizer

    chosen = _spread(np.arange(len(live)), SAMPLED_PASSAGES)
    passages = folder.documents.fetch(live[chosen].tolist())
    texts = [passages[int(row)].text for row in live[chosen]]
    vectorizer = CountVectorizer(stop_words="english", token_pattern=r"(?u)\b[^\W\d_]{3,}\b")
    try:
        counts = vectorizer.fit_transform(texts)
    except ValueError:
        # The texts have no words.
        return [[] for _ in range(clusters)]
    frequency = np.zeros((clusters, counts.shape[1]))
    for topic in range(clusters):
        frequency[topic] = counts[topic_of[chosen] == topic].sum(axis=0)
    average = frequency.sum() / clusters
    weights = frequency * np.log(1 + average / np.maximum(frequency.sum(axis=0), 1))
    names: Sequence[str] = vectorizer.get_feature_names_out()
    best = np.argsort(-weights, axis=1, kind="stable")[:, :TYPICAL_WORDS]
    return [[str(names[word]) for word in row if weights[topic, word] > 0] for topic, row in enumerate(best)]
