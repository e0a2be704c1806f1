"""Run every program of docs/clients.md in an environment of its own: python tests/clients/run.py [NAME ...]

Environments lie in ``.clients/`` and are kept; delete the folder to resolve anew. With uv on the path it takes minutes,
with pip an hour. ``--constraint FILE`` is handed to the installer, e.g. to keep a torch without CUDA.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.clients.page import ROOT, Client, clients, prelude

ENVIRONMENTS = ROOT / ".clients"


def install(client: Client, constraint: str | None) -> Path:
    """Make the client's environment, with this working tree as ctx-embed, and return its Python."""
    folder = ENVIRONMENTS / client.name.lower().replace(" ", "-")
    python = folder / "bin" / "python"
    uv = shutil.which("uv")
    if not python.exists():
        venv = [uv, "venv", "--quiet", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
        subprocess.run([*venv, str(folder)], check=True)
    packages = [str(ROOT) + name.removeprefix(".") if name.startswith(".") else name for name in client.packages]
    installer = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    options = ["--quiet", *(["--constraint", constraint] if constraint else [])]
    subprocess.run([*installer, *options, *packages], check=True)
    return python


def main() -> int:
    """Install and run the clients named, or all; the exit status counts those that failed."""
    known = clients()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all without one")
    parser.add_argument("--constraint", metavar="FILE", help="for the installer")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    failed = 0
    for name in arguments.names or known:
        begin = time.monotonic()
        script = prelude() + known[name].code + known[name].use
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment.pop("PYTHONPATH", None)
        try:
            python = install(known[name], arguments.constraint)
            folder = ENVIRONMENTS / "run"
            folder.mkdir(exist_ok=True)
            subprocess.run([str(python), "-c", script], check=True, cwd=folder, env=environment)
            outcome = "works"
        except subprocess.CalledProcessError as error:
            failed, outcome = failed + 1, f"FAILED ({error.returncode})"
        print(f"{name}: {outcome}, {time.monotonic() - begin:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
