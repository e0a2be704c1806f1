"""Run the aarch64 wheel under qemu, and compare its vectors and hits with this machine's: make aarch64.

Debian's packages of Python are unpacked into a folder, and pip puts the light installation for aarch64 beside them, so
that nothing is installed on this machine. Needs Debian, qemu-user, the packages ``build`` and ``ziglang``, and the
registries of Debian and PyPI.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from ctx_embed import SearchIndex
from ctx_embed.kernel import kernel_name
from ctx_embed.runtime import Embedder

ROOT = Path(__file__).parents[2]
PLATFORMS = ("manylinux_2_17_aarch64", "manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64")
PACKAGES = ("python3", "libstdc++6", "libgomp1", "zlib1g")
ODD = ["", "naïve café 東京都", "a " * 5000, "don't-stop \xad\xad x", "\U0001f600 ok", "\ud800"]


def results() -> tuple[np.ndarray, list[int]]:
    """Return the vectors of sample texts and odd ones, and the ids that a search of the samples finds."""
    lines = (ROOT / "docs" / "samples" / "articles.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    with tempfile.TemporaryDirectory() as folder, SearchIndex.create(Path(folder, "samples.index")) as index:
        index.add(texts)
        return Embedder.load().encode([*texts, *ODD]), [hit.id for hit in index.search("a cyber attack", 10)]


def unpack(folder: Path) -> None:
    """Unpack Debian's Python and our wheel with what it needs, all for aarch64, into a folder."""
    apt = ["apt-get", "-qq", *(f"-oAPT::{name}=arm64" for name in ("Architecture", "Architectures"))]
    places = {"State": "state", "State::status": "state/status", "Cache": "cache"}
    apt += ["-oDebug::NoLocking=1", *(f"-oDir::{name}={folder / place}" for name, place in places.items())]
    for place in ("state/lists/partial", "cache/archives/partial"):
        (folder / place).mkdir(parents=True)
    (folder / "state/status").touch()
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "install", "-y", "--download-only", "--no-install-recommends", *PACKAGES], check=True)
    for package in (folder / "cache/archives").glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    (version,) = {path.name.removeprefix("python") for path in (folder / "root/usr/bin").glob("python3.[0-9]*[0-9]")}
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "dist", ROOT]
    subprocess.run(build, env={**os.environ, "CTX_EMBED_PLATFORM": PLATFORMS[0]}, check=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary=:all:", "--target"]
    pip += [folder / "site", "--python-version", version, *(f"--platform={name}" for name in PLATFORMS)]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", "-r", ROOT / "requirements-light.txt"], check=True)
    subprocess.run([*pip, "--no-deps", *(folder / "dist").glob("*.whl")], check=True)


def main() -> None:
    """Compare the two machines; exit with 1 unless hits are equal and vectors within 2e-6."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        unpack(folder)
        there = ["qemu-aarch64", "-L", folder / "root", folder / "root/usr/bin/python3", __file__, folder / "there.npz"]
        variables = {"PYTHONPATH": str(folder / "site"), "HF_HUB_OFFLINE": "1"}
        subprocess.run(there, env={"PATH": os.environ["PATH"], **variables}, check=True)
        vectors, ids = results()
        with np.load(folder / "there.npz") as found:
            distance, kernel = float(abs(found["vectors"] - vectors).max()), str(found["kernel"])
            equal = found["ids"].tolist() == ids
    said = f"vectors differ by {distance:.1g}, hits {'agree' if equal else 'differ'}"
    print(f"aarch64 ({kernel}) and {kernel_name()}: {said}")
    sys.exit(not (equal and distance < 2e-6 and kernel == "plain"))


if __name__ == "__main__":
    if sys.argv[1:]:
        of_texts, of_search = results()
        np.savez(sys.argv[1], vectors=of_texts, ids=of_search, kernel=kernel_name())
    else:
        main()
