"""Add the compiled kernel to the wheel, and a CycloneDX list: dependencies, the model's files and its training data.

The page of the package is README.md. There its links into the sources lead to the address that pyproject.toml names as
``urls.Source``; without one they become plain text, and pictures go.

Python's place for such lists is ``.dist-info/sboms`` (PEP 770). The list depends on the sources only, and the kernel
on its source and the compiler, so two builds of the same sources are equal.

``CTX_EMBED_PLATFORM=musllinux_1_2_aarch64`` compiles for another platform, with the package ziglang; the names are
those of build_kernel.py. Without it the kernel is compiled for this machine if it has a compiler, and the
wheel is one for any platform if not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import uuid
from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import platform_tags

NAME = "ctx-embed.cdx.json"
MODEL = Path("ctx_embed/pretrained/default")
KERNEL = Path("ctx_embed/kernel")


def _canonical(name: str) -> str:
    """Return the name of a package as PyPI spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _tested(constraints: Path) -> dict[str, str]:
    """Return the version of each package with which the project was tested."""
    lines = constraints.read_text(encoding="utf-8").splitlines()
    pinned = [re.match(r"([\w.-]+)==([^\s;]+)", line) for line in lines]
    return {_canonical(found[1]): found[2] for found in pinned if found}


def _dependency(requirement: str, scope: str, tested: dict[str, str]) -> dict[str, Any]:
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    purl = f"pkg:pypi/{_canonical(name)}"
    version = tested.get(_canonical(name))
    return {
        "type": "library",
        "bom-ref": f"{scope}:{requirement}",
        "name": name,
        **({} if version is None else {"version": version}),
        "purl": purl if version is None else f"{purl}@{version}",
        "scope": scope,
        "properties": [{"name": "ctx-embed:requirement", "value": requirement}],
    }


def _data(name: str, sha256: str, role: str) -> dict[str, Any]:
    return {
        "type": "data",
        "bom-ref": f"{role}:{name}",
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "properties": [{"name": "ctx-embed:role", "value": role}],
    }


def _training(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the files of texts and labels that the records of a model's stages of training name."""
    texts = {file for record in records for source in record["sources"] for file in source["files"].items()}
    labels = {file for record in records for file in (record.get("labelled") or {}).items()}
    roles = {"training texts": texts, "training labels": labels}
    return [_data(name, digest, role) for role, files in roles.items() for name, digest in sorted(files)]


def bill_of_materials(root: Path, project: dict[str, Any]) -> dict[str, Any]:
    """Return the list for the sources in ``root``; ``project`` is the table of pyproject.toml."""
    folder = root / MODEL
    files = [
        {
            "type": "file",
            "bom-ref": f"model file:{path.relative_to(folder).as_posix()}",
            "name": path.relative_to(folder).as_posix(),
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    stages = [*folder.glob("*-stage.json"), folder / "training.json"]
    fingerprint = json.loads((folder / "fingerprint.json").read_text(encoding="utf-8"))["fingerprint"]
    model = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": "ctx-embed default model",
        "version": fingerprint,
        "components": files + _training([json.loads(path.read_text(encoding="utf-8")) for path in stages]),
    }
    required = project["dependencies"]
    extras = {line for lines in project["optional-dependencies"].values() for line in lines} - set(required)
    tested = _tested(root / "constraints.txt")
    libraries = [_dependency(line, "required", tested) for line in required]
    libraries += [
        _dependency(line, "optional", tested) for line in sorted(extras) if not line.startswith(project["name"])
    ]
    itself = {
        "type": "library",
        "bom-ref": "ctx-embed",
        "name": project["name"],
        "version": project["version"],
        "purl": f"pkg:pypi/{project['name']}@{project['version']}",
        "licenses": [{"expression": project["license"]}],
    }
    content = {"metadata": {"component": itself}, "components": [*libraries, model]}
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        **content,
    }


def platform_of(library: bytes) -> str:
    """Return the platform of a library that was compiled for this machine; with glibc, from the version it needs."""
    names = list(platform_tags())
    machine = next((name.removeprefix("linux_") for name in names if name.startswith("linux_")), "")
    glibc = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)]
    if machine and glibc:
        return f"manylinux_2_{max(17, *glibc)}_{machine}"
    return next((name for name in names if name.startswith("musllinux")), names[0])


def package_page(readme: str, version: str, source: str | None) -> str:
    """Return README.md for a page that does not stand among the sources, whose address is ``source``."""
    picture = rf"{source}/raw/v{version}/\2" if source else ""
    readme = re.sub(r"!\[([^\]]*)\]\((?![a-z]+://)([^)]+)\)\n*", rf"![\1]({picture})\n\n" if source else "", readme)
    link = rf"[\1]({source}/blob/v{version}/\2)" if source else r"\1"
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?![a-z]+://|#)([^)]+)\)", link, readme)


class CustomMetadataHook(MetadataHookInterface):
    """Makes the package's page of README.md."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the page."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        page = package_page(readme, metadata["version"], metadata.get("urls", {}).get("Source"))
        metadata["readme"] = {"content-type": "text/markdown", "text": page}


class CustomBuildHook(BuildHookInterface):
    """Adds the kernel and the list to wheels, and puts the kernel beside its source in an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write both where the builder takes them from."""
        self.folder = tempfile.TemporaryDirectory()
        folder, root = Path(self.folder.name), Path(self.root)
        path = folder / NAME
        project = self.metadata.config["project"]
        path.write_text(json.dumps(bill_of_materials(root, project), indent=1) + "\n", encoding="utf-8")
        build_data["sbom_files"].append(str(path))
        kernel = run_path(str(root / "build_kernel.py"))
        if version == "editable":
            kernel["build"](root / KERNEL)
            return
        platform = os.environ.get("CTX_EMBED_PLATFORM")
        if platform and platform not in kernel["TARGETS"]:
            names = ", ".join(kernel["TARGETS"])
            raise SystemExit(f"CTX_EMBED_PLATFORM must be one of {names}, got {platform}")
        library = kernel["build"](folder, target=kernel["TARGETS"].get(platform))
        if library:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform or platform_of(library.read_bytes())}"
            build_data["force_include"][str(library)] = (KERNEL / library.name).as_posix()
        elif platform:
            raise SystemExit(f"the kernel could not be compiled for {platform}; install ziglang")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the files."""
        self.folder.cleanup()
