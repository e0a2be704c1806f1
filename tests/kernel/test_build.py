from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from ctypes import CDLL, c_char_p
from pathlib import Path

import pytest

from ctx_embed.kernel.build import SOURCE, TARGETS, build

COMPILER = os.environ.get("CC") or next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")


@needs_compiler
def test_a_library_names_its_source_and_the_processors_that_it_serves(tmp_path):
    path = build(tmp_path / "new folder")
    library = CDLL(str(path))
    library.ctx_source.restype = c_char_p
    assert library.ctx_source().decode() == hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    assert library.ctx_paths() & 1
    if platform.machine() == "x86_64" and sys.platform == "linux":
        flags = next(
            line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")
        ).split()
        assert bool(library.ctx_paths() & 2) == ({"avx2", "fma"} <= set(flags))
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@needs_compiler
def test_two_builds_are_equal_and_replace_a_library_that_is_in_use(tmp_path):
    path = build(tmp_path)
    first, library = path.read_bytes(), CDLL(str(path))
    assert build(tmp_path) == path
    assert path.read_bytes() == first
    assert library.ctx_paths() & 1


@needs_compiler
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads ELF symbols with nm")
def test_a_library_exports_its_calls_alone(tmp_path):
    if not shutil.which("nm"):
        pytest.skip("no nm")
    listed = subprocess.run(["nm", "-D", "--defined-only", build(tmp_path)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert names
    assert all(name.startswith("ctx_") for name in names)
    assert not names & {"ctx_embed_plain", "ctx_embed_avx2"}


@pytest.mark.parametrize("command", ["no-such-compiler", "false"])
def test_without_a_compiler_there_is_one_line_and_no_library(command, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CC", command)
    assert build(tmp_path) is None
    output, error = capfd.readouterr()
    assert (output, error.count("\n"), list(tmp_path.iterdir())) == ("", 1, [])
    assert command in error
    assert "NumPy" in error


@needs_compiler
def test_an_error_of_the_compiler_is_one_line_and_the_library_stays(tmp_path, capfd):
    before = build(tmp_path).read_bytes()
    assert build(tmp_path, compiler=[COMPILER, "-include", "no-such-file.h"]) is None
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "no-such-file.h" in error
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [before]


def test_the_file_runs_without_the_package(tmp_path):
    for path in (SOURCE, SOURCE.with_name("build.py")):
        shutil.copy(path, tmp_path)
    command = [sys.executable, "-I", "-S", "build.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == (len(list(tmp_path.glob("contextualizer.[!c]*"))) == 0), run.stderr


# The first bytes of a library, and where its header names the processor.
def machine_of(library: bytes) -> tuple[str, str]:
    if library[:4] == b"\x7fELF":
        return "so", {62: "x86_64", 183: "aarch64"}[int.from_bytes(library[18:20], "little")]
    if library[:4] == b"\xcf\xfa\xed\xfe":
        return "dylib", {0x1000007: "x86_64", 0x100000C: "aarch64"}[int.from_bytes(library[4:8], "little")]
    assert library[:2] == b"MZ"
    at = int.from_bytes(library[0x3C:0x40], "little")
    assert library[at : at + 4] == b"PE\0\0"
    return "dll", {0x8664: "x86_64", 0xAA64: "aarch64"}[int.from_bytes(library[at + 4 : at + 6], "little")]


@needs_zig
@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_releases_are_compiled_for_every_platform_with_equal_bytes(name, tmp_path):
    path = build(tmp_path / "one", target=TARGETS[name])
    library = path.read_bytes()
    assert machine_of(library) == (path.suffix[1:], TARGETS[name].partition("-")[0])
    assert library == build(tmp_path / "two", target=TARGETS[name]).read_bytes()
    assert hashlib.sha256(SOURCE.read_bytes()).hexdigest().encode() in library
    assert str(tmp_path).encode() not in library
