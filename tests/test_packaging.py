from __future__ import annotations

import ast
import importlib.metadata
import os
import re
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


@pytest.mark.skipif(not (ROOT / "ctx_embed" / "cli").is_symlink(), reason="an sdist holds copies instead of links")
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


@pytest.mark.parametrize("page", ["README.md", "docs/clients.md", "docs/install.md", "LICENSE-MODEL.md"])
def test_links_lead_to_files_that_an_sdist_holds(page):
    held = {line.split()[1] for line in (ROOT / "MANIFEST.in").read_text().splitlines() if line.startswith("graft")}
    held |= {name for line in (ROOT / "MANIFEST.in").read_text().splitlines() for name in line.split()[1:]}
    held |= {"README.md", *PROJECT["project"]["license-files"]}
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            path = ((ROOT / page).parent / target).resolve().relative_to(ROOT)
            assert (ROOT / path).exists(), target
            assert path.parts[0] in held, target


def test_every_third_party_import_is_declared():
    """Of the package's own code; extras may bring what only some files import, by the name in the second list."""
    declared = " ".join(PROJECT["project"]["dependencies"]).lower().replace("-", "_")
    names = {"sklearn": "scikit_learn", "faiss": "faiss_cpu"}
    extras = str(PROJECT["project"]["optional-dependencies"]).lower().replace("-", "_")
    extras += " llama_index pydantic pandas"  # of llama_index_core, langchain_core and datasets
    standard = set(sys.stdlib_module_names) | {"ctx_embed", "__future__"}
    for path in [*(ROOT / "ctx_embed").glob("[!ce]*/**/*.py"), *(ROOT / "ctx_embed").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in {module.partition(".")[0] for module in modules} - standard:
                assert names.get(name, name) in declared + extras, f"{path.name} imports {name}"


def test_the_classifiers_name_the_versions_of_python():
    assert PROJECT["project"]["requires-python"] == ">=3.10"
    minors = [int(name.rpartition(".")[2]) for name in PROJECT["project"]["classifiers"] if ":: Python :: 3." in name]
    assert minors == [10, 11, 12, 13, 14]


def test_the_light_installation_is_a_part_of_the_default_one():
    lines = (ROOT / "requirements-light.txt").read_text(encoding="utf-8").splitlines()
    light = {line for line in lines if not line.startswith("#")}
    assert light < set(PROJECT["project"]["dependencies"])


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
    for name in ("pyproject.toml", "README.md", *PROJECT["project"]["license-files"]):
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


@pytest.mark.slow
def test_the_tests_of_an_sdist_run(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if not names:
        pytest.skip("not a clone")
    source = tmp_path / "source"
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    sdist = build("sdist", source, tmp_path)
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    unpacked = tmp_path / "unpacked" / sdist.name.removesuffix(".tar.gz")
    for name in names:
        assert (unpacked / name).exists() or name.startswith((".", "CONTRIBUTING")), name
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tests = ["tests/test_errors.py", "tests/test_packaging.py", "tests/test_loading.py", "tests/cli/test_main.py"]
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    subprocess.run([*command, *tests], cwd=unpacked, env=environment, check=True)
