"""The blocks of docs/clients.md run; those of programs that are not installed in `make clients`."""

from importlib.util import find_spec

import pytest

from tests.clients.page import LINES, clients, prelude

CLIENTS = clients()
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
    if find_spec(IMPORTS[name]) is None:
        pytest.skip(f"{name} is not installed")
    exec(prelude() + CLIENTS[name].code + CLIENTS[name].use, {})


@pytest.mark.parametrize("name", CLIENTS)
def test_a_block_is_short_and_python(name):
    compile(prelude() + CLIENTS[name].code + CLIENTS[name].use, name, "exec")
    lines = [line for line in CLIENTS[name].code.splitlines() if line and not line.startswith((" ", ")"))]
    assert len(lines) <= LINES
