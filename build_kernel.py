"""Compiles ctx_embed/kernel/contextualizer.c to a shared library, with the standard library only.

``python build_kernel.py`` compiles in place; hatch_build.py calls it for wheels and editable installs.
``python build_kernel.py wasm`` compiles it for browsers: js/src/kernel.wasm, which is committed.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).parent / "ctx_embed" / "kernel" / "contextualizer.c"
# The platforms of release wheels, as file names have them and as ziglang names them.
TARGETS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
    "win_arm64": "aarch64-windows-gnu",
}
# For browsers: a module of these calls and memory, without imports.
WASM = SOURCE.parents[2] / "js" / "src" / "kernel.wasm"
WASM_FLAGS = ["-target", "wasm32-wasi", "-mexec-model=reactor", "-msimd128", "-Wl,--export=malloc,--export-dynamic"]
# Without a processor's name, zig compiles for the one that it runs on.
ZIG = [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]


def build(folder: Path, compiler: Sequence[str] | None = None, target: str | None = None) -> Path | None:
    """Compile the library in a folder and return its path; None, and a line on stderr, if no compiler can.

    Without ``compiler`` or ``target``, it tries the compiler that ``CC`` names, or else the usual ones.
    On x86-64 it holds a second object, for processors with AVX2 and FMA. Equal sources and compilers give equal bytes.
    """
    system = {"darwin": "macos", "win32": "windows"}.get(sys.platform, "linux")
    machine = platform.machine().lower()
    if target:
        machine, system, *_ = target.replace(".", "-").split("-")
    library = SOURCE.with_suffix({"macos": ".dylib", "windows": ".dll"}.get(system, ".so")).name
    flags = ["-O3", "-g0", "-fvisibility=hidden", "-Wno-psabi"] + (["-fPIC"] if system != "windows" else [])
    # Leave out names, times and numbers that differ from one build to the next.
    links = {"macos": [f"-Wl,-install_name,@rpath/{library}"], "windows": ["-s"]}
    link = ["-shared", *links.get(system, ["-s", "-Wl,--build-id=none"]), "-lm", "-o", library]
    digest = f"{zlib.crc32(SOURCE.read_bytes()):08x}"
    commands = [[f'-DSOURCE="{digest}"', SOURCE.name, *link]]
    if machine in ("x86_64", "amd64"):
        commands = [["-mavx2", "-mfma", "-c", SOURCE.name, "-o", "avx2.o"], ["-DWITH_AVX2", "avx2.o", *commands[0]]]
    if compiler:
        compilers = [list(compiler)]
    elif target:
        compilers = [[*ZIG, "-target", target]]
    elif os.environ.get("CC"):
        compilers = [shlex.split(os.environ["CC"])]
    else:
        compilers = [["cc"], ["gcc"], ["clang"], ZIG]
    reasons = []
    for command in compilers:
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copy(SOURCE, scratch)
            try:
                for arguments in commands:
                    run = [*command, *flags, *arguments]
                    subprocess.run(run, cwd=scratch, check=True, capture_output=True, text=True, errors="replace")
            except OSError as error:
                reasons.append(f"{shlex.join(command)}: {error.strerror}")
            except subprocess.CalledProcessError as error:
                lines = error.stderr.strip().splitlines()
                first = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "failed")
                reasons.append(f"{shlex.join(command)}: {first:.200}")
            else:
                folder.mkdir(parents=True, exist_ok=True)
                # Write it next to its place, then move it: a process may have the old one in memory.
                part = folder / f"{library}.{os.getpid()}.partial"
                content = Path(scratch, library).read_bytes()
                # The checksum at its end shows that the file is whole; loaders of libraries do not read so far.
                part.write_bytes(content + f"{zlib.crc32(content):08x}".encode())
                part.replace(folder / library)
                return folder / library
    print(f"{SOURCE.name} is not compiled, NumPy will do its work ({'; '.join(reasons)})", file=sys.stderr)
    return None


def build_wasm(path: Path) -> None:
    """Compile the kernel to WebAssembly with the package ziglang. Equal sources and compilers give equal bytes."""
    digest = f"{zlib.crc32(SOURCE.read_bytes()):08x}"
    flags = ["-O3", "-g0", "-s", "-fvisibility=hidden", "-Wno-psabi", f'-DSOURCE="{digest}"']
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(SOURCE, scratch)
        command = [*ZIG[:-1], *WASM_FLAGS, *flags, SOURCE.name, "-o", path.name]
        subprocess.run(command, cwd=scratch, check=True)
        shutil.copyfile(Path(scratch, path.name), path)


if __name__ == "__main__":
    if sys.argv[1:] == ["wasm"]:
        sys.exit(build_wasm(WASM))
    sys.exit(build(SOURCE.parent) is None)
