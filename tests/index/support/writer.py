"""Child process: add batches of documents to an index until killed, and report each one that is stored."""

import random
import sys

from ctx_embed.index.search_index import SearchIndex
from ctx_embed.index.storage.folder import IndexFolder
from tests.index.support.hash_model import HashEmbedder

if __name__ == "__main__":
    index = SearchIndex(IndexFolder(sys.argv[1]), HashEmbedder())
    batch = int(sys.argv[2])
    while True:
        size = random.Random(batch).randint(1, 6)
        index.add([f"text {batch} {place}" for place in range(size)], [f"{batch}-{place}" for place in range(size)])
        print(batch, flush=True)
        batch += 1
