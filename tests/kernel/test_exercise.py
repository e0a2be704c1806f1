"""Runs exercise.c, which needs no Python, under sanitizers and for another processor (``make sanitize``)."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ctx_embed.kernel.build import SOURCE, ZIG

PROGRAM = Path(__file__).with_name("exercise.c")
COMPILER = shlex.split(os.environ.get("CC", "cc"))
FLAGS = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
pytestmark = pytest.mark.slow


def compiled(folder: Path, compiler: list[str], *flags: str, avx2: bool) -> Path:
    objects = []
    if avx2:
        subprocess.run(
            [*compiler, *FLAGS, *flags, "-mavx2", "-mfma", "-c", SOURCE, "-o", folder / "avx2.o"], check=True
        )
        objects = [folder / "avx2.o", "-DWITH_AVX2"]
    program = folder / "exercise"
    command = [*compiler, *FLAGS, *flags, '-DSOURCE=""', PROGRAM, *objects, "-lm", "-lpthread", "-o", program]
    subprocess.run(command, check=True)
    return program


@pytest.mark.skipif(shutil.which(COMPILER[0]) is None, reason="no C compiler")
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizers, tmp_path):
    flags = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    program = compiled(tmp_path, COMPILER, *flags, avx2=platform.machine() in ("x86_64", "AMD64"))
    # ThreadSanitizer needs addresses where it expects them.
    fixed = ["setarch", "-R"] if sanitizers == "thread" and shutil.which("setarch") else []
    run = subprocess.run([*fixed, program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
@pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="qemu-user is not installed")
@pytest.mark.skipif(sys.platform != "linux", reason="qemu-user runs on Linux")
def test_the_code_for_arm_does_the_same(tmp_path):
    program = compiled(tmp_path, ZIG, "-O3", "-target", "aarch64-linux-musl", "-static", avx2=False)
    run = subprocess.run(["qemu-aarch64", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
