"""What an index holds: near-duplicates and topics, its metadata fields, an export, and why a text is similar."""

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_embed.errors import InputError, quoted
from ctx_embed.files import replaced_file, require_folder
from ctx_embed.index.documents import Id
from ctx_embed.index.faiss_file import faiss
from ctx_embed.index.folder import View
from ctx_embed.index.vectors import Rows, spread
from ctx_embed.numpy_model.embedder import CosineParts
from ctx_embed.progress import Meter

# Number of passages to compare with the others at a time.
ROWS_AT_ONCE = 1024
# At most this number of vectors train the clusters; words are counted in at most this number of passages.
SAMPLED_VECTORS, SAMPLED_PASSAGES = 100_000, 30_000
VECTORS_AT_ONCE = 16_384
TYPICAL_WORDS, CENTRAL_DOCUMENTS = 8, 3
# Examples are chosen among at most this number of passages; two passages are nearly the same from this cosine on.
CANDIDATES, SAME = 100, 0.95
LABEL_WORDS = 3
# The type of a field for each type of JSON value in SQLite; NULL for null.
_KIND = (
    "CASE entry.type WHEN 'integer' THEN 'number' WHEN 'real' THEN 'number' WHEN 'text' THEN 'string' "
    "WHEN 'true' THEN 'boolean' WHEN 'false' THEN 'boolean' WHEN 'array' THEN 'list' WHEN 'object' THEN 'object' END"
)


@dataclass(frozen=True)
class Pair:
    """Two passages (``left`` was added first) and the cosine of their vectors."""

    score: float
    left: Id
    right: Id
    left_text: str
    right_text: str


def find_duplicates(view: View, threshold: float, most: int, progress: bool) -> list[Pair]:
    """Return the nearest pairs of passages of different documents, see :meth:`SearchIndex.duplicates`."""
    if not -1 <= threshold <= 1:
        raise InputError(f"the threshold must be a cosine from -1 to 1, got {quoted(threshold)}")
    firsts, rows = view.store.firsts()[:, 0], view.rows[view.readable]
    best: list[tuple[float, int, int]] = []
    with Meter("comparing", len(rows), "passages", shown=progress) as meter:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[start : start + ROWS_AT_ONCE]
            # Earlier pairs win ties.
            lowest = best[0][0] if len(best) == most else threshold
            for score, left, right in near_pairs(view, some, lowest, firsts, most):
                push = heapq.heappush if len(best) < most else heapq.heappushpop
                push(best, (score, -left, -right))
            meter.update(len(some))
    passages = view.store.fetch({-row for _, *rows in best for row in rows})
    found = [(score, passages[-left], passages[-right]) for score, left, right in sorted(best, reverse=True)]
    return [Pair(score, left.document.id, right.document.id, left.text, right.text) for score, left, right in found]


def near_pairs(view: View, rows: Rows, threshold: float, firsts: Rows, most: int) -> Iterator[tuple[float, int, int]]:
    """Yield the best pairs of ascending rows with other documents, ``most`` of each block: cosine, row, later row."""
    documents: Any = partial(np.searchsorted, firsts, side="right")
    # FAISS would take longer up to some 200,000 passages, and miss pairs.
    vectors = view.vectors.get(rows)
    for others, of_others in view.vectors.blocks(int(rows[0]) - 1):
        scores = np.clip(vectors @ of_others.T, -1, 1)
        wanted = (scores >= threshold - 1e-6) & (others > rows[:, None])
        wanted &= documents(others) != documents(rows)[:, None]
        best = np.argsort(-scores[wanted], kind="stable")[:most]  # Of equal pairs, the first ones.
        for place, column in np.argwhere(wanted)[best]:
            yield max(float(scores[place, column]), threshold), int(rows[place]), int(others[column])


@dataclass(frozen=True)
class Topic:
    """A cluster: its number of passages, typical words, ids and texts of central passages that differ, and a label.

    The label is its first words, different from all other labels. ``documents`` are the ids of those with most of their
    passages in it, in the order of addition; if two topics have equally many, the first passage decides.
    """

    size: int
    words: list[str]
    examples: list[tuple[Id, str]]
    label: str
    documents: list[Id] = field(default_factory=list, repr=False)


def find_topics(view: View, count: int | None, seed: int) -> list[Topic]:
    """Cluster the vectors by spherical k-means and return the clusters, see :meth:`SearchIndex.topics`."""
    live, store = view.rows[view.live], view.store
    clusters = count or int(np.clip(round((len(live) / 2) ** 0.5), 2, 50))
    if len(live) < clusters:
        raise InputError(f"{view.store.folder}: {len(live)} passages cannot make {clusters} topics; ask for fewer")
    # FAISS takes a seed of 32 bits.
    options = {"niter": 20, "seed": (seed + 1) % 2**31, "spherical": True, "min_points_per_centroid": 1}
    means = faiss.Kmeans(view.settings.dimension, clusters, **options)
    means.train(view.vectors.get(spread(live, SAMPLED_VECTORS)))
    centres: Any = means.centroids
    topic_of, nearness = np.empty(len(live), np.int64), np.empty(len(live), np.float32)
    for first in range(0, len(live), VECTORS_AT_ONCE):
        part = slice(first, first + VECTORS_AT_ONCE)
        scores = view.vectors.get(live[part]) @ centres.T
        topic_of[part], nearness[part] = scores.argmax(axis=1), scores.max(axis=1)
    typical = _typical_words(view, live, topic_of, clusters)
    sizes = np.bincount(topic_of, minlength=clusters)
    by_size = [int(topic) for topic in np.argsort(-sizes, kind="stable") if sizes[topic]]
    # The topic of each document is that of most of its passages, or of the first of equally many.
    _, documents = np.unique(np.searchsorted(store.firsts()[:, 0], live, side="right"), return_inverse=True)
    pairs, first, counts = np.unique(documents * clusters + topic_of, return_index=True, return_counts=True)
    pairs = pairs[np.lexsort((first, -counts, pairs // clusters))]
    main = pairs[np.unique(pairs // clusters, return_index=True)[1]] % clusters
    ids = store.ids_matching()
    topics: dict[str, Topic] = {}
    # The passages of each topic, the most central first, and its documents.
    members = np.split(np.lexsort((-nearness, topic_of)), np.cumsum(sizes))
    owned = np.split(np.argsort(main, kind="stable"), np.cumsum(np.bincount(main, minlength=clusters)))
    for number, topic in enumerate(by_size, 1):
        label = " ".join(typical[topic][:LABEL_WORDS])
        if not label or label in topics:
            label = f"{label or 'topic'} {number}"
        central = live[members[topic][:CANDIDATES]]
        vectors, passages = view.vectors.get(central), list(store.fetch(central.tolist()).values())
        examples: dict[str, int] = {}
        for place, (_, _, text) in enumerate(passages):
            # Vectors of texts that the model cannot read are zero.
            if text not in examples and all(vectors[place] @ vectors[other] < SAME for other in examples.values()):
                examples[text] = place
            if len(examples) == CENTRAL_DOCUMENTS:
                break
        named = [(passages[place].document.id, text) for text, place in examples.items()]
        own = [ids[place] for place in owned[topic]]
        topics[label] = Topic(int(sizes[topic]), typical[topic], named, label, own)
    return list(topics.values())


def _typical_words(view: View, live: Rows, topic_of: NDArray[np.int64], clusters: int) -> list[list[str]]:
    """Return the typical words of each topic.

    They have the highest f log(1 + A / F), where f is the frequency of a word in the topic, F that in all topics and A
    the average number of words of a topic (class-based TF-IDF, Grootendorst 2022). Words that most topics share are
    left out: at least half as frequent in most of them as in all together, and less than three times as frequent in the
    topic itself. A topic that has no other words keeps them.
    """
    try:
        from sklearn.feature_extraction.text import CountVectorizer
    except ModuleNotFoundError:
        raise InputError("topics need scikit-learn: pip install scikit-learn") from None
    chosen = spread(np.arange(len(live)), SAMPLED_PASSAGES)
    passages = view.store.fetch(live[chosen].tolist())
    vectorizer = CountVectorizer(stop_words="english", token_pattern=r"(?u)\b[^\W\d_]{3,}\b")
    try:
        counts = vectorizer.fit_transform([passage.text for passage in passages.values()])
    except ValueError:  # The texts have no words.
        return [[] for _ in range(clusters)]
    # Only of words that a topic has: an array of all topics and words would fill the memory.
    in_topic = type(counts)((np.ones_like(chosen), (topic_of[chosen], np.arange(len(chosen)))), (clusters, len(chosen)))
    found = (in_topic @ counts).tocoo()
    topic, word, frequency = found.row, found.col, found.data
    of_topic, of_word = np.bincount(topic, frequency, clusters), np.bincount(word, frequency)
    weights = frequency * np.log(1 + frequency.sum() / clusters / of_word[word])
    # Frequencies relative to those in all topics together.
    ratios = frequency / of_topic[topic] * frequency.sum() / of_word[word]
    shared = np.bincount(word, ratios >= 0.5) / np.count_nonzero(of_topic) > 0.5
    kept = ~shared[word] | (ratios >= 3)
    kept |= np.bincount(topic, kept, clusters)[topic] == 0
    order = np.lexsort((word, -weights, topic))
    order = order[kept[order]]
    names = np.split(vectorizer.get_feature_names_out()[word[order]], np.searchsorted(topic[order], range(1, clusters)))
    return [list(map(str, some[:TYPICAL_WORDS])) for some in names]


@dataclass(frozen=True)
class Field:
    """A metadata field: its name, its most frequent type, and the number of documents that have it.

    ``type`` is ``number``, ``string``, ``boolean``, ``list`` or ``object``. Numbers and strings (by code points) have
    a ``lowest`` and a ``highest`` value. ``values`` are the most frequent ones, or the most frequent strings in lists,
    each with its number of documents.
    """

    name: str
    type: str
    documents: int
    lowest: float | str | None
    highest: float | str | None
    values: list[tuple[Any, int]]


def find_fields(view: View, most: int) -> list[Field]:
    """Return the fields that documents have, the most frequent first, with at most ``most`` values of each."""
    entries = "FROM documents, json_each(documents.metadata) AS entry"
    kinds = f"SELECT entry.key, {_KIND} AS kind, count(*), min(entry.atom), max(entry.atom) {entries}"
    by_name: dict[str, list[tuple[Any, ...]]] = {}
    for name, *found in view.store.run(f"{kinds} WHERE kind IS NOT NULL GROUP BY 1, 2 ORDER BY 3 DESC, 2"):
        by_name.setdefault(str(name), []).append(tuple(found))
    # One query for all fields: a query for each would read all documents again.
    values: dict[tuple[str, str], list[tuple[Any, int]]] = {}
    elements = "json_each(CASE entry.type WHEN 'array' THEN entry.value END) AS element WHERE element.type = 'text'"
    for value, counted, where in (
        ("entry.atom", "count(*)", "WHERE kind IN ('boolean', 'number', 'string')"),
        # An element that occurs twice in a list counts once.
        ("element.atom", "count(DISTINCT documents.row)", f", {elements}"),
    ):
        ranked = f"row_number() OVER (PARTITION BY entry.key, {_KIND} ORDER BY {counted} DESC, {value}) AS place"
        counts = f"SELECT entry.key, {_KIND} AS kind, {value}, {counted}, {ranked} {entries} {where} GROUP BY 1, 2, 3"
        for name, kind, *pair, _ in view.store.run(
            f"SELECT * FROM ({counts}) WHERE place <= ? ORDER BY place", (most,)
        ):
            values.setdefault((str(name), kind), []).append((bool(pair[0]) if kind == "boolean" else pair[0], pair[1]))
    fields = []
    for name, types in by_name.items():
        kind, _, lowest, highest = types[0]
        if kind not in ("number", "string"):
            lowest = highest = None
        documents = sum(count for _, count, *_ in types)
        fields.append(Field(name, kind, documents, lowest, highest, values.get((name, kind), [])))
    return sorted(fields, key=lambda field: (-field.documents, field.name))


def export_index(view: View, output: Path) -> int:
    """Write vectors and passages, see :meth:`SearchIndex.export`."""
    require_folder(output)
    vectors_path, texts_path = (output.with_name(output.name + suffix) for suffix in (".npy", ".jsonl"))
    with (
        replaced_file(vectors_path) as vectors,
        replaced_file(texts_path) as texts,
        vectors.open("wb") as array,
        texts.open("w", encoding="utf-8") as lines,
    ):
        header = {"descr": "<f4", "fortran_order": False, "shape": (view.count, view.settings.dimension)}
        np.lib.format.write_array_header_1_0(array, header)
        passages = (
            # One of several passages has an id of its own.
            (
                row,
                ({"id": one.id} if one.passages == 1 else {"id": f"{one.id}#{at}", "document": one.id, "start": at})
                | {"text": text, "metadata": one.metadata},
            )
            for one in view.store.all()
            for (row, text), (at, _) in zip(one.texts(), one.spans, strict=True)
        )
        while part := list(islice(passages, VECTORS_AT_ONCE)):
            array.write(view.vectors.get(np.array([row for row, _ in part])).astype("<f4").tobytes())
            lines.writelines(json.dumps(passage, ensure_ascii=False) + "\n" for _, passage in part)
    return view.count


@dataclass(frozen=True)
class Similarity:
    """The cosine of a query and a document, and the parts of it that each token of the two adds."""

    score: float
    query: CosineParts
    document: CosineParts
