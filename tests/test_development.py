"""What is built and installed, what CONTRIBUTING says of the folders."""

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import ctx_embed
from tests import size

ROOT = Path(__file__).parent.parent
PROJECT = size.tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COMPILER = next(filter(shutil.which, ("cc", "gcc", "clang")), None)


def test_contributing_shows_the_picture_and_names_files_that_are_there():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown, table = page.split("```text\n")[1].partition("## Documentation")[0].split("```")[:2]
    assert shown.strip() == size.picture()
    assert [path for path in re.findall(r"`([a-z_]+/[\w/.]+)`", table) if not (ROOT / path).exists()] == []


def test_the_command_the_version_and_the_light_installation():
    lines = (ROOT / "requirements-light.txt").read_text(encoding="utf-8").splitlines()
    assert {line for line in lines if not line.startswith("#")} < set(PROJECT["project"]["dependencies"])
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="ctx-embed")
    assert callable(script.load())
    assert {"ctx-embed": script.value} == PROJECT["project"]["scripts"]
    version = PROJECT["project"]["version"]
    assert version == ctx_embed.__version__ == importlib.metadata.version("ctx-embed")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0] == version
    assert (ROOT / "tests" / "formats" / version).is_dir()


def test_links_of_the_packages_page_lead_into_the_sources_or_are_text():
    pytest.importorskip("hatchling", reason="the extra dev is not installed")
    page = runpy.run_path(str(ROOT / "hatch_build.py"))["package_page"]
    readme = "![a plot](docs/a.svg)\n\n[Docs](docs/index.md) and [this](#part), [that](https://b.org)."
    assert page(readme, "1.2", None) == "Docs and [this](#part), [that](https://b.org)."
    assert page(readme, "1.2", "https://a.org/x") == (
        "![a plot](https://a.org/x/raw/v1.2/docs/a.svg)\n\n"
        "[Docs](https://a.org/x/blob/v1.2/docs/index.md) and [this](#part), [that](https://b.org)."
    )


@pytest.mark.parametrize("page", ["README.md", "docs/clients.md", "docs/install.md", "LICENSE-MODEL.md"])
def test_links_lead_to_files_that_an_sdist_holds(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    for target in re.findall(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", text):
        path = ((ROOT / page).parent / target).resolve().relative_to(ROOT)
        assert (ROOT / path).exists(), target
        assert {path.parts[0], path.as_posix()} & {*included}, target


def test_every_third_party_import_is_declared():
    """Of the package's own code; extras may bring what only some files import, by the name in the second list."""
    names = {"sklearn": "scikit_learn", "faiss": "faiss_cpu", "pydantic_core": "pydantic"}
    declared = str([PROJECT["project"][kind] for kind in ("dependencies", "optional-dependencies")])
    declared = declared.lower().replace("-", "_") + " llama_index pydantic pandas"  # which some of them bring
    standard = set(sys.stdlib_module_names) | {"ctx_embed", "__future__", "tomllib"}  # tomllib from 3.11 on
    for path in [*(ROOT / "ctx_embed").glob("[!ce]*/**/*.py"), *(ROOT / "ctx_embed").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in {module.partition(".")[0] for module in modules} - standard:
                assert names.get(name, name) in declared, f"{path.name} imports {name}"


def clone(source: Path, weights: bool = True) -> Path:
    """Copy the tracked files to ``source``, with or without the weights of the default model, and return it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if not listed.stdout:
        pytest.skip("not a clone")
    for name in listed.stdout.splitlines():
        if weights or not name.endswith(".safetensors"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    return source


def build(kind: str, source: Path, folder: Path, **variables: str) -> Path:
    """Build an ``sdist`` or a ``wheel`` of ``source`` in ``folder`` offline, and return its path."""
    pytest.importorskip("hatchling", reason="the extra dev is not installed")
    folder.mkdir(exist_ok=True)
    script = f"import sys; from hatchling import build; print(build.build_{kind}(sys.argv[1]))"
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"} | variables
    command = [sys.executable, "-c", script, str(folder)]
    run = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=True)
    return folder / run.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def plain_wheel(tmp_path_factory) -> Path:
    """A wheel without the kernel and the weights."""
    folder = tmp_path_factory.mktemp("plain")
    return build("wheel", clone(folder / "source", weights=False), folder, CC="no-such-compiler")


def test_a_wheel_lists_its_dependencies_and_what_the_model_was_trained_on(plain_wheel):
    wheel = zipfile.ZipFile(plain_wheel)
    (name,) = (name for name in wheel.namelist() if ".dist-info/sboms/" in name)
    bill = json.loads(wheel.read(name))
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", ctx_embed.__version__)
    *libraries, model = bill["components"]
    listed = {each["properties"][0]["value"]: each["scope"] for each in libraries}
    assert {line for line, scope in listed.items() if scope == "required"} == set(PROJECT["project"]["dependencies"])
    assert "fastapi>=0.115" in listed
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    versions = {each["name"]: each.get("version") for each in libraries}
    assert all(f"\n{name}=={versions[name]};" in constraints for name in ("numpy", "fastapi", "torch"))
    # Only Python 3.10 needs tomli, and constraints.txt is for newer ones.
    assert [name for name, version in versions.items() if version is None] == ["tomli"]
    assert all(each["purl"].endswith(f"@{each['version']}") for each in libraries if "version" in each)
    folder = ROOT / "ctx_embed" / "pretrained" / "default"
    digests = {each["name"]: each["hashes"][0]["content"] for each in model["components"]}
    assert digests["tokenizer.json"] == hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    for path in (*folder.glob("*-stage.json"), folder / "training.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        for files in (*(each["files"] for each in record["sources"]), record["labelled"]):
            assert files.items() <= digests.items()
    names = [each["bom-ref"] for each in (*bill["components"], *model["components"])]
    assert len(names) == len(set(names))


def kernels(wheel: Path) -> list[str]:
    """Return the compiled libraries in a wheel."""
    names = zipfile.ZipFile(wheel).namelist()
    return [name for name in names if re.fullmatch(r".*/kernel/contextualizer\.(?!c$)\w+", name)]


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_a_wheel_holds_the_kernel_and_names_its_platform(tmp_path):
    source = clone(tmp_path / "source", weights=False)
    (source / "ctx_embed" / "kernel" / "contextualizer.so").write_bytes(b"of an editable install")
    (source / "ctx_embed" / "kernel" / "contextualizer.dll").write_bytes(b"of another system")
    # Without optimisation, which takes most of the compiler's time.
    script = tmp_path / "cc"
    script.write_text(f'#!/bin/sh\nexec {COMPILER} "$@" -O0\n')
    script.chmod(0o755)
    wheel = build("wheel", source, tmp_path, CC=str(script))
    archive = zipfile.ZipFile(wheel)
    (name,) = kernels(wheel)
    assert len(archive.read(name)) > 10_000
    (about,) = (name for name in archive.namelist() if name.endswith("/WHEEL"))
    lines = archive.read(about).decode().splitlines()
    (tag,) = (line for line in lines if line.startswith("Tag: "))
    assert tag.removeprefix("Tag: ") in wheel.name
    assert "Root-Is-Purelib: false" in lines
    if platform.libc_ver()[0] == "glibc":
        minor = int(re.fullmatch(r"Tag: py3-none-manylinux_2_(\d+)_\w+", tag)[1])
        assert 17 <= minor <= int(platform.libc_ver()[1].split(".")[1])


def test_a_wheel_for_a_platform_is_that_or_an_error(plain_wheel, tmp_path):
    source = clone(tmp_path / "source", weights=False)
    with pytest.raises(subprocess.CalledProcessError) as error:
        build("wheel", source, tmp_path, CTX_EMBED_PLATFORM="amiga")
    assert "CTX_EMBED_PLATFORM must be one of" in error.value.stderr
    assert plain_wheel.name.endswith("-py3-none-any.whl")
    assert kernels(plain_wheel) == []


@pytest.mark.slow
def test_a_wheel_holds_all_files_and_nothing_else(tmp_path):
    source = clone(tmp_path / "source")
    sdist = build("sdist", source, tmp_path)
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    wheel = build("wheel", tmp_path / "unpacked" / sdist.name.removesuffix(".tar.gz"), tmp_path)
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        os.path.relpath(os.path.join(folder, name), source)
        for folder, _, names in os.walk(source / "ctx_embed", followlinks=True)
        for name in names
    }
    assert files == wanted | set(kernels(wheel))
    assert {name.partition("/")[0] for name in files} == {"ctx_embed"}
