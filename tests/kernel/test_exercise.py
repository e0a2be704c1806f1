"""Runs exercise.c, which needs no Python, under sanitizers and for another processor (``make sanitize``)."""

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
@pytest.mark.skipif(sys.platform != "linux", reason="qemu-user runs on Linux")
@pytest.mark.parametrize(
    ("machine", "processor", "paths"),
    [("aarch64", "cortex-a53", 1), ("x86_64", "Nehalem", 1), ("x86_64", "Haswell", 2)],
)
def test_other_processors_do_the_same(machine, processor, paths, tmp_path):
    if shutil.which(f"qemu-{machine}") is None:
        pytest.skip("qemu-user is not installed")
    target = ["-O3", "-target", f"{machine}-linux-musl", "-static"]
    program = compiled(tmp_path, ZIG, *target, avx2=machine == "x86_64")
    command = [f"qemu-{machine}", "-cpu", processor, program]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("-- ") == paths
