"""The kernel is compiled, and runs under sanitizers and on other processors."""

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from ctypes import CDLL, c_char_p
from pathlib import Path

import pytest

import build_kernel
from build_kernel import SOURCE, TARGETS, ZIG, build
from tests.kernel.wheels import machine_of

COMPILER = shlex.split(os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), ""))
DIGEST = f"{zlib.crc32(SOURCE.read_bytes()):08x}".encode()
needs_compiler = pytest.mark.skipif(not COMPILER, reason="no C compiler")
needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")


def has_avx2() -> bool:
    """Whether the Linux that runs here says so."""
    return {"avx2", "fma"} <= set(Path("/proc/cpuinfo").read_text().split())


@needs_compiler
def test_a_library_is_replaced_by_an_equal_one_while_in_use_and_stays_after_an_error(tmp_path, capfd):
    library = build(tmp_path / "new folder")
    first, loaded = library.read_bytes(), CDLL(str(library))
    loaded.ctx_source.restype = c_char_p
    assert loaded.ctx_source() == DIGEST
    if sys.platform == "linux":
        assert bool(loaded.ctx_paths() & 2) == has_avx2()
    if sys.platform == "linux" and shutil.which("nm"):
        # It exports its calls alone.
        listed = subprocess.check_output(["nm", "-D", "--defined-only", library], text=True)
        names = {line.split()[-1] for line in listed.splitlines()}
        assert all(re.fullmatch("ctx_(?!.*_(plain|avx2)$).*", name) for name in names)
        assert "ctx_embed" in names
    assert build(library.parent) == library
    assert library.read_bytes() == first
    assert loaded.ctx_paths() & 1
    capfd.readouterr()
    assert build(library.parent, compiler=[*COMPILER, "-include", "no-such-file.h"]) is None
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "no-such-file.h" in error
    assert [each.read_bytes() for each in library.parent.iterdir()] == [first]


@pytest.mark.parametrize("command", ["no-such-compiler", "false"])
def test_without_a_compiler_there_is_one_line_and_no_library(command, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("CC", command)
    assert build(tmp_path) is None
    output, error = capfd.readouterr()
    assert (output, error.count("\n"), list(tmp_path.iterdir())) == ("", 1, [])
    assert command in error
    assert "NumPy" in error


def test_the_file_runs_without_the_package(tmp_path):
    shutil.copy(build_kernel.__file__, tmp_path)
    (tmp_path / "ctx_embed" / "kernel").mkdir(parents=True)
    shutil.copy(SOURCE, tmp_path / "ctx_embed" / "kernel")
    command, variables = [sys.executable, "-I", "-S", "build_kernel.py"], {**os.environ, "CC": "no-such-compiler"}
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
    assert DIGEST in library
    assert str(tmp_path).encode() not in library
    here = {"glibc": "manylinux", "": "musllinux"}.get(platform.libc_ver()[0], "other")
    if sys.platform == "linux" and name.startswith(here) and name.endswith(platform.machine()):
        assert bool(CDLL(str(path)).ctx_paths() & 2) == has_avx2()


# exercise.c, which needs no Python


def compiled(folder: Path, *command: str, avx2: bool) -> Path:
    objects, program, source = [], folder / "exercise", Path(__file__).with_name("exercise.c")
    command += ("-g", "-Wall", "-Wextra", "-Werror", "-Wno-psabi")
    if avx2:
        subprocess.run([*command, "-mavx2", "-mfma", "-c", SOURCE, "-o", folder / "avx2.o"], check=True)
        objects = [folder / "avx2.o", "-DWITH_AVX2"]
    subprocess.run([*command, '-DSOURCE=""', source, *objects, "-lm", "-lpthread", "-o", program], check=True)
    return program


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizers, tmp_path):
    flags = ["-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    program = compiled(tmp_path, *COMPILER, *flags, avx2=platform.machine() in ("x86_64", "AMD64"))
    # ThreadSanitizer needs addresses where it expects them.
    fixed = ["setarch", "-R"] if sanitizers == "thread" and shutil.which("setarch") else []
    run = subprocess.run([*fixed, program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr


@needs_zig
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="qemu-user runs on Linux")
@pytest.mark.parametrize(
    ("machine", "processor", "paths"),
    [("aarch64", "cortex-a53", 1), ("x86_64", "Nehalem", 1), ("x86_64", "Haswell", 2)],
)
def test_other_processors_do_the_same(machine, processor, paths, tmp_path):
    if shutil.which(f"qemu-{machine}") is None:
        pytest.skip("qemu-user is not installed")
    program = compiled(tmp_path, *ZIG, "-O3", "-target", f"{machine}-linux-musl", "-static", avx2=machine == "x86_64")
    command = [f"qemu-{machine}", "-cpu", processor, program]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("-- ") == paths
