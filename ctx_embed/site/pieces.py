"""Pieces: compressed files that are named by the hash of their bytes, so that caches never mix old and new ones."""

import hashlib
import os
import zlib
from pathlib import Path

# Bytes of a hash that make a name.
NAME = 12


class Pieces:
    """Writes pieces into a folder. What an earlier folder has stays the same file, for programs that copy changes."""

    def __init__(self, folder: Path, earlier: Path | None = None) -> None:
        self.folder, self.earlier = folder, earlier or folder

    def add(self, *parts: bytes) -> str:
        """Write a piece, unless it is there, and return its name. Its parts are packed apart, as they are unlike."""
        packer = zlib.compressobj(9)
        packed = b"".join(packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in parts[:-1])
        packed += packer.compress(parts[-1]) + packer.flush()
        name = hashlib.sha256(packed).digest()[:NAME].hex()
        place = Path("pieces", name[:2], f"{name[2:]}.bin")
        path, before = self.folder / place, self.earlier / place
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                if before.read_bytes() != packed:
                    raise OSError
                os.link(before, path)
            except OSError:
                path.write_bytes(packed)
        return name

    def add_list(self, every: list[tuple[bytes, ...]]) -> str:
        """Write pieces, and the list of their names as one more; return the name of the list."""
        return self.add(b"".join(bytes.fromhex(self.add(*parts)) for parts in every))


def varint(number: int) -> bytes:
    """Return a number in seven bits a byte, the lowest first; the last byte is below 128."""
    octets = bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    return bytes([*octets, number])
