"""examples/ray_data.py on a cluster of two nodes, one of whose workers is killed in the middle."""

import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ctx_embed import SearchIndex, stores

PROGRAM = Path(__file__).parents[2] / "examples" / "ray_data.py"
FILES, ROWS = 6, 8000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "lancedb:"])
def test_a_killed_worker_of_a_cluster_loses_and_doubles_nothing(tmp_path, kind):
    psutil = pytest.importorskip("psutil")
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="ray is not installed")
    ids = [f"{file}-{row}" for file in range(FILES) for row in range(ROWS)]
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        mine = ids[file * ROWS : (file + 1) * ROWS]
        texts = [f"The whale {identifier} was seen near the coast, " * 10 for identifier in mine]
        table = pa.table({"id": mine, "text": texts, "file": [file] * ROWS})
        parquet.write_table(table, tmp_path / "in" / f"{file}.parquet")
    cluster = cluster_utils.Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        to, index = f"{kind}{tmp_path}/out", tmp_path / "index"
        command = [sys.executable, PROGRAM, tmp_path / "in", to, "--index", index, "--address", cluster.address]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        killed = 0
        while process.poll() is None:
            for each in [] if killed else psutil.process_iter(["cmdline"]):
                # Ray names a process after what it runs: here, a batch is being embedded.
                if (each.info["cmdline"] or [""])[0].startswith("ray::MapWorker(MapBatches(Embed)).submit"):
                    each.kill()
                    killed += 1
                    break
            time.sleep(0.02)
        assert (process.returncode, killed) == (0, 1)
    finally:
        cluster.shutdown()

    with stores.open(to) as store:
        assert store.count() == len(ids)
        if isinstance(store, stores.parquet.Parquet):
            assert sorted(row.id for row in store.documents()) == sorted(ids)
    with SearchIndex.open(index) as made:
        assert sorted(made.ids()) == sorted(ids)
        assert made.search("whale 3-77", 1, where="file = 3")
