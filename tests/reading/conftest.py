import zipfile

import pytest


@pytest.fixture
def file(tmp_path):
    """Writes a file of bytes or text, or an archive of members."""

    def write(content: bytes | str | dict, name: str = "a.txt"):
        path = tmp_path / name
        if isinstance(content, dict):
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for member, written in content.items():
                    archive.writestr(member, written)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def members():
    """Returns the members of an archive."""

    def read(path) -> dict[str, bytes]:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    return read
