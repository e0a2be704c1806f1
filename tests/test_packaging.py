from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import ctx_embed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
LINKS = ("cli", "eval")


def packages() -> set[str]:
    """Each folder that holds Python files, by the name it is imported by."""
    folders = {path.parent for top in ("ctx_embed", *LINKS) for path in (ROOT / top).rglob("*.py")}
    dotted = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    return {name if name.startswith("ctx_embed") else f"ctx_embed.{name}" for name in dotted}


def test_every_package_is_listed_and_has_an_init():
    assert set(SETUPTOOLS["packages"]) == packages()
    assert len(SETUPTOOLS["packages"]) == len(set(SETUPTOOLS["packages"]))
    for name in SETUPTOOLS["packages"]:
        assert (ROOT / name.replace(".", "/") / "__init__.py").is_file()


def test_two_links_stand_for_the_folders_at_the_top():
    links = {path.name: os.readlink(path) for path in (ROOT / "ctx_embed").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in LINKS}
    assert SETUPTOOLS["package-dir"] == {f"ctx_embed.{name}": name for name in LINKS}


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "ctx_embed" / "py.typed").is_file()
    assert "py.typed" in SETUPTOOLS["package-data"]["ctx_embed"]


def test_the_command_and_the_version():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="ctx-embed")
    assert callable(script.load())
    assert {"ctx-embed": script.value} == PROJECT["project"]["scripts"]
    assert PROJECT["project"]["version"] == ctx_embed.__version__ == importlib.metadata.version("ctx-embed")


def build(kind: str, source: Path, folder: Path) -> Path:
    """What setuptools builds in ``folder``, without a network: an ``sdist`` or a ``wheel``."""
    script = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(folder)]
    lines = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True).stdout.splitlines()
    return folder / lines[-1]


@pytest.mark.slow
def test_a_wheel_holds_all_files_and_nothing_else(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in ("ctx_embed", *LINKS):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    sdist = build("sdist", source, tmp_path)
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    wheel = build("wheel", tmp_path / "unpacked" / sdist.name.removesuffix(".tar.gz"), tmp_path)
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        os.path.relpath(os.path.join(folder, name), source)
        for folder, _, names in os.walk(source / "ctx_embed", followlinks=True)
        for name in names
    }
    assert files == wanted
    assert {name.partition("/")[0] for name in files} == {"ctx_embed"}
