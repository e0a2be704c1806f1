"""The wheels of a release are refused where one lacks the kernel, or has another than its name says."""

import zipfile
import zlib
from pathlib import Path

import pytest

from ctx_embed.kernel.build import SOURCE, TARGETS
from tests.kernel.wheels import check

DIGEST = f"{zlib.crc32(SOURCE.read_bytes()):08x}".encode()
# The first bytes of libraries for x86-64 and for ARM, as far as they are read.
HEADERS = {
    "so": (b"\x7fELF" + bytes(14) + b"\x3e\0", b"\x7fELF" + bytes(14) + b"\xb7\0"),
    "dylib": (b"\xcf\xfa\xed\xfe\x07\0\0\x01", b"\xcf\xfa\xed\xfe\x0c\0\0\x01"),
    "dll": (b"MZ" + bytes(58) + b"\x40\0\0\0PE\0\0\x64\x86", b"MZ" + bytes(58) + b"\x40\0\0\0PE\0\0\x64\xaa"),
}


@pytest.fixture
def release(tmp_path) -> Path:
    for platform, target in TARGETS.items():
        suffix = {"mac": "dylib", "win": "dll"}.get(platform[:3], "so")
        write(tmp_path, platform, suffix, HEADERS[suffix][target.startswith("aarch64")] + DIGEST)
    return tmp_path


def write(folder: Path, platform: str, suffix: str, library: bytes) -> None:
    with zipfile.ZipFile(folder / f"ctx_embed-0.2.0-py3-none-{platform}.whl", "w") as archive:
        archive.writestr(f"ctx_embed/kernel/contextualizer.{suffix}", library)


def test_a_release_with_all_wheels_passes(release):
    check(release)


@pytest.mark.parametrize(
    ("platform", "suffix", "library", "message"),
    [
        ("win_amd64", "c", b"", "lacks the kernel"),
        ("macosx_11_0_arm64", "dylib", HEADERS["dylib"][0] + DIGEST, "x86_64"),
        ("manylinux_2_17_x86_64", "so", HEADERS["so"][0] + DIGEST[::-1], "another source"),
        ("any", "so", HEADERS["so"][0] + DIGEST, "'any'"),
    ],
)
def test_a_wheel_that_lacks_its_kernel_fails(release, platform, suffix, library, message):
    write(release, platform, suffix, library)
    with pytest.raises(AssertionError, match=message):
        check(release)


def test_a_missing_wheel_fails(release):
    next(release.glob("*musllinux*aarch64.whl")).unlink()
    with pytest.raises(AssertionError, match="musllinux_1_2_aarch64"):
        check(release)
