"""The blocks of docs/clients.md run; those of programs that are not installed in `make clients`."""

import pytest

from tests.clients.run import clients

CLIENTS = clients()
LINES = 3  # of code that a program may need, closing brackets apart
# Those that the extras of the tests bring; the others have environments of their own.
IMPORTS = {
    "LangChain": "langchain_core",
    "LlamaIndex": "llama_index",
    "Chroma": "chromadb",
    "scikit-learn": "sklearn",
    "MTEB": "mteb",
}


@pytest.mark.parametrize("name", IMPORTS)
@pytest.mark.filterwarnings("ignore")  # theirs
def test_a_block_runs(name):
    pytest.importorskip(IMPORTS[name])
    exec(CLIENTS[name].program, {})


@pytest.mark.parametrize("name", CLIENTS)
def test_a_block_is_short_and_python(name):
    compile(CLIENTS[name].program, name, "exec")
    lines = [line for line in CLIENTS[name].code.splitlines() if line and not line.startswith((" ", ")"))]
    assert len(lines) <= LINES
