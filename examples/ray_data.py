"""Embed Parquet files on a Ray cluster into a store, and make a search index of it.

    pip install "ray[data]"
    python examples/ray_data.py texts/ embeddings --index library.index --actors 8

TEXTS are files or folders of Parquet with the columns ``id`` and ``text``; others become metadata. TO is a folder of
Parquet or ``lancedb:FOLDER#TABLE``, see docs/scaling.md. Each actor loads the model once; this process alone writes.
Ray repeats what a lost worker had not returned, and rows are stored by id, so each id is there once. To resume, repeat
the command: it embeds all texts again, and replaces rows by id.
"""

import argparse
from contextlib import ExitStack
from pathlib import Path

import ray
import ray.data

from ctx_embed import SearchIndex, stores
from ctx_embed.model import Model
from ctx_embed.stores.columns import fields_of

# Rows that an actor embeds in a call, and rows that are stored in a step.
EMBEDDED, STORED = 2048, 16_384


class Embed:
    """Adds a column ``embedding`` to batches of rows."""

    def __init__(self) -> None:
        self.model = Model.of(None)

    def __call__(self, batch):
        """Return the batch with the unit vectors of its texts."""
        return {**batch, "embedding": self.model.documents(batch["text"].tolist())}


def batches(rows, names):
    """Yield the embedded rows as batches of a store, with the columns ``names`` as metadata."""
    for table in rows.iter_batches(batch_size=STORED, batch_format="pyarrow"):
        vectors = table["embedding"].combine_chunks().to_numpy_ndarray()
        ids = [str(identifier) for identifier in table["id"].to_pylist()]
        yield stores.Batch(ids, table["text"].to_pylist(), table.select(names).to_pylist(), vectors)


def main() -> None:
    """Embed and store all rows, then index them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("to")
    parser.add_argument("--index", help="a search index to make of the store")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--address", help="of the cluster; a new one on this machine otherwise")
    given = parser.parse_args()

    ray.init(address=given.address)
    # The same rows lie in the same parts when the command is repeated.
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    texts = ray.data.read_parquet(given.texts)
    names = [name for name in texts.schema().names if name not in ("id", "text")]
    rows = texts.map_batches(Embed, batch_size=EMBEDDED, compute=ray.data.ActorPoolStrategy(size=given.actors))
    with ExitStack() as stack:
        store = stack.enter_context(stores.open(given.to))
        stack.enter_context(store.writing())
        # Columns of metadata get the types of the first rows.
        sample = [{name: row[name] for name in names} for row in texts.take(1000)]
        store.ensure(stores.Collection.of(Model.of(None), fields_of(sample)))
        index = None
        if given.index:
            there = Path(given.index).exists()
            index = stack.enter_context(SearchIndex.open(given.index) if there else SearchIndex.create(given.index))
        for number, batch in enumerate(batches(rows, names)):
            store.upsert(batch, part=f"{number:08d}")
            if index is not None:
                index.upsert(batch.texts, batch.ids, batch.metadata, batch.vectors)
        store.finish()
        print(f"{store.count()} embeddings in {store.name}")


if __name__ == "__main__":
    main()
