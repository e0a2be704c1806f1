"""A forked child computes, although the threads of its parent's libraries did not survive the fork."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

SCRIPT = """
import os
texts = [f"a cat sat on mat number {number}" for number in range(2000)]
if KIND == "encoders":
    import ctx_embed
    from ctx_embed.systems import untrained
    shipped, other = ctx_embed.load(device="cpu"), untrained("transformer")
    compute = lambda texts: [*shipped.encode(texts), *other.encode(texts[:100])]
else:
    from ctx_embed import SearchIndex
    index = SearchIndex.create(FOLDER, factory="IVF16,SQ8")
    index.add(texts)
    compute = lambda texts: index.search(texts[:300], k=5)
compute(texts)
child = os.fork()
if not child:
    code = 1
    try:
        code = 0 if len(compute(texts)) else 1
    finally:
        os._exit(code)
print("exit code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("kind", ["encoders", "search with FAISS"])
def test_a_child_computes_after_its_parent_did_on_several_threads(tmp_path, kind):
    script = SCRIPT.replace("KIND", repr(kind)).replace("FOLDER", repr(str(tmp_path / "index")))
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    # A child that waits for threads never ends; the session ends it with its parent.
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script], env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.communicate()
    assert said == b"exit code 0\n"
