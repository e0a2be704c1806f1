"""Check the wheels of a release: python -m tests.kernel.wheels FOLDER.

There is one for each platform, and it holds the kernel, compiled for the processor and system that its name says.
"""

import sys
import zipfile
import zlib
from pathlib import Path

from build_kernel import SOURCE, TARGETS


def machine_of(library: bytes) -> tuple[str, str]:
    """Return the suffix and the processor that a shared library's header names."""
    if library[:4] == b"\x7fELF":
        return "so", {62: "x86_64", 183: "aarch64"}[int.from_bytes(library[18:20], "little")]
    if library[:4] == b"\xcf\xfa\xed\xfe":
        return "dylib", {0x1000007: "x86_64", 0x100000C: "aarch64"}[int.from_bytes(library[4:8], "little")]
    assert library[:2] == b"MZ", library[:4]
    at = int.from_bytes(library[0x3C:0x40], "little")
    return "dll", {0x8664: "x86_64", 0xAA64: "aarch64"}[int.from_bytes(library[at + 4 : at + 6], "little")]


def check(folder: Path) -> None:
    """Raise AssertionError unless the wheels in a folder are those of a release."""
    wheels = {path.stem.rpartition("-")[2]: path for path in folder.glob("*.whl")}
    assert wheels.keys() == TARGETS.keys(), f"wheels for {sorted(wheels)}, not {sorted(TARGETS)}"
    digest = f"{zlib.crc32(SOURCE.read_bytes()):08x}".encode()
    for platform, path in wheels.items():
        archive = zipfile.ZipFile(path)
        processor, system = TARGETS[platform].replace(".", "-").split("-")[:2]
        suffix = {"macos": "dylib", "windows": "dll"}.get(system, "so")
        name = f"ctx_embed/kernel/contextualizer.{suffix}"
        assert name in archive.namelist(), f"{path.name} lacks the kernel"
        library = archive.read(name)
        assert machine_of(library) == (suffix, processor), f"{path.name}: {machine_of(library)}"
        assert digest in library, f"{path.name} has a kernel of another source"


if __name__ == "__main__":
    check(Path(sys.argv[1]))
