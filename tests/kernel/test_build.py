import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import zlib
from ctypes import CDLL, c_char_p
from pathlib import Path

import pytest

from ctx_embed.kernel.build import SOURCE, TARGETS, build
from tests.kernel.wheels import machine_of

COMPILER = os.environ.get("CC") or next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")


def has_avx2() -> bool:
    """Whether the Linux that runs here says so."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return {"avx2", "fma"} <= set(flags)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library, compiled in a folder that did not exist."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    return build(tmp_path_factory.mktemp("kernel") / "new folder")


def test_a_library_names_its_source_and_the_processors_that_it_serves(library):
    loaded = CDLL(str(library))
    loaded.ctx_source.restype = c_char_p
    assert loaded.ctx_source().decode() == f"{zlib.crc32(SOURCE.read_bytes()):08x}"
    assert loaded.ctx_paths() & 1
    if sys.platform == "linux":
        assert bool(loaded.ctx_paths() & 2) == has_avx2()


def test_two_builds_are_equal_and_replace_a_library_that_is_in_use(library):
    first, loaded = library.read_bytes(), CDLL(str(library))
    assert build(library.parent) == library
    assert library.read_bytes() == first
    assert loaded.ctx_paths() & 1
    assert list(library.parent.iterdir()) == [library]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads ELF symbols with nm")
def test_a_library_exports_its_calls_alone(library):
    if not shutil.which("nm"):
        pytest.skip("no nm")
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
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


def test_an_error_of_the_compiler_is_one_line_and_the_library_stays(library, capfd):
    before = library.read_bytes()
    assert build(library.parent, compiler=[COMPILER, "-include", "no-such-file.h"]) is None
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "no-such-file.h" in error
    assert [each.read_bytes() for each in library.parent.iterdir()] == [before]


def test_the_file_runs_without_the_package(tmp_path):
    for path in (SOURCE, SOURCE.with_name("build.py")):
        shutil.copy(path, tmp_path)
    command, variables = [sys.executable, "-I", "-S", "build.py"], {**os.environ, "CC": "no-such-compiler"}
    run = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("contextualizer.c is not compiled, NumPy will do its work (no-such-compiler: ")


@needs_zig
@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_releases_are_compiled_for_every_platform_with_equal_bytes(name, tmp_path):
    path = build(tmp_path / "one", target=TARGETS[name])
    library = path.read_bytes()
    assert machine_of(library) == (path.suffix[1:], TARGETS[name].partition("-")[0])
    assert library == build(tmp_path / "two", target=TARGETS[name]).read_bytes()
    assert f"{zlib.crc32(SOURCE.read_bytes()):08x}".encode() in library
    assert str(tmp_path).encode() not in library
    here = {"glibc": "manylinux", "": "musllinux"}.get(platform.libc_ver()[0], "other")
    if sys.platform == "linux" and name.startswith(here) and name.endswith(platform.machine()):
        assert bool(CDLL(str(path)).ctx_paths() & 2) == has_avx2()
