"""The topics of an index, computed in a process of its own, which imports no more than it needs."""

from __future__ import annotations

from pathlib import Path

from ctx_embed.index import SearchIndex
from ctx_embed.serving.wire import json_list


def topics(path: Path, most_bytes: int, count: int | None, seed: int) -> bytes:
    """Return the topics of an index as JSON, without the ids of their documents: those may be millions."""
    with SearchIndex.open(path) as index:
        found = index.topics(count, seed)
    names = ("size", "words", "examples", "label")
    return json_list(({name: getattr(topic, name) for name in names} for topic in found), most_bytes)
