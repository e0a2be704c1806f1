"""How large the house is, and its picture: `make size` compares installed lines, functions with one use, and files and
functions that one query runs, with tests/size.toml; `make picture` draws the layers of imports in CONTRIBUTING.

None may exceed its mark. To raise a mark, commit tests/size.toml alone and say what users get for it.
"""

import ast
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent

# From the bottom to the top; each may import from itself and from those before it.
_LAYERS = """
errors deadlines lazy texts files options progress vectors reading writing kernel second_order text fingerprint
numpy_model runtime model_card saved_card modules systems loading model export classify training index site grep
deduplication stores bulk_encoding explanations serving integrations eval cli __main__
"""
LAYERS = _LAYERS.split()
INSTALLED = [path for top in ("ctx_embed", "cli", "eval") for path in (ROOT / top).rglob("*.py")]

# Runs a command and prints file and line of each function of the project that ran, except while a module of it was
# imported; comprehensions are parts of their functions.
_TRIP = """
import sys, threading
from pathlib import Path
import ctx_embed
from ctx_embed.cli.main import run

root = str(Path(ctx_embed.__file__).resolve().parent)
ran = set()

def imports(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and root in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False

def profile(frame, event, argument):
    code = frame.f_code
    name = f"{code.co_filename}:{code.co_firstlineno}"
    if event == "call" and root in name and code.co_name[0] != "<" and name not in ran and not imports(frame):
        ran.add(name)

sys.argv[0] = "ctx-embed"
threading.setprofile(profile)
sys.setprofile(profile)
try:
    run()
finally:
    sys.setprofile(None)
    threading.setprofile(None)
    print(*sorted(ran), sep="\\n", file=sys.stderr)
"""


def picture() -> str:
    """Return a line for each folder and file of the package: each imports only from lines above it."""
    lines = []
    for name in LAYERS:
        path = ROOT / "ctx_embed" / name
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        said = (ast.get_docstring(ast.parse(file.read_bytes())) or "").partition("\n")[0].replace("``", "")
        lines.append(f"{name + '/' * path.is_dir():<16} {said}")
    return "\n".join(lines)


def functions_with_one_use() -> int:
    """Return the number of functions whose name occurs once besides its definition, so that they are steps of a caller.

    Decorated ones do not count, nor those that a folder exports.
    """
    names: Counter[str] = Counter()
    defined: list[str] = []
    for path in INSTALLED:
        with path.open("rb") as file:
            names.update(token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.NAME)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
                defined.append(node.name)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                # Other folders name what they export in an import as well.
                names.update(ast.literal_eval(node.value) if isinstance(node.value, ast.List) else ())
    return sum(names[name] == 2 for name in defined)


def trip(*arguments: str) -> list[str]:
    """Return file and line of each function of the project that runs in a command of ``ctx-embed``."""
    command = [sys.executable, "-c", _TRIP, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr.splitlines()


if __name__ == "__main__":
    if sys.argv[1:] == ["--picture"]:
        sys.exit(print(picture()))
    with tempfile.TemporaryDirectory() as folder:
        index = str(Path(folder) / "news.index")
        trip("index", "build", "docs/samples/articles.jsonl", index)
        query = trip("index", "query", index, "cyber attack on a clinic", "-k", "3")
    sizes = {
        "installed_lines": sum(len(path.read_bytes().splitlines()) for path in INSTALLED),
        "functions_with_one_use": functions_with_one_use(),
        "query_files": len({function.rpartition(":")[0] for function in query}),
        "query_functions": len(query),
    }
    marks = tomllib.loads((ROOT / "tests" / "size.toml").read_text(encoding="utf-8"))
    for name, size in sizes.items():
        verdict = "ok" if size <= marks[name] else "above its mark; make it smaller"
        print(f"{name.replace('_', ' ')}: {size:,} (mark {marks[name]:,}): {verdict}")
    sys.exit(any(size > marks[name] for name, size in sizes.items()))
