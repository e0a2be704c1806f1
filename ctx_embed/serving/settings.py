"""What a server serves, to whom, and within which limits."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

from ctx_embed.errors import InputError

MIB = 1 << 20
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    """The settings of a server; each worker process has the same.

    Args:
        indexes: folders of search indexes; each is served under the name of its folder.
        models: model folders or ``default``; the first one embeds, and those with labels classify.
        rerankers: SentenceTransformers or CrossEncoders, by name or folder, that searches and `/v1/rerank` may ask for.
        host: the address it listens on.
        api_key_file: a file of keys, see :class:`Keys`; None asks for none.
        no_keys: let anyone read and write, from other machines and under other names of this one.
        cors: the origins whose pages may call the server, ``*`` for all; none unless given.
        body_bytes: the largest request body.
        texts: the most texts of a request.
        text_characters: the most characters of a text.
        seconds: the longest that a request may take, in seconds.
        requests: the most requests at work in a worker process at a time.
    """

    indexes: tuple[Path, ...] = ()
    models: tuple[str, ...] = ("default",)
    rerankers: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    api_key_file: Path | None = None
    no_keys: bool = False
    cors: tuple[str, ...] = ()
    body_bytes: int = 16 * MIB
    texts: int = 2048
    text_characters: int = 1_000_000
    seconds: float = 60.0
    requests: int = 256

    def names(self) -> dict[str, Path]:
        """Return the folder of each index by the name under which it is served.

        Raises:
            InputError: two folders have the same name.
        """
        named: dict[str, Path] = {}
        for path in (Path(index).absolute() for index in self.indexes):
            if named.setdefault(path.name, path) != path:
                raise InputError(f"{named[path.name]} and {path} have the same name {path.name!r}; rename one of them")
        return named


@dataclass(frozen=True)
class Keys:
    """The keys that clients must send: a read key searches and embeds, a write key changes indexes too.

    Args:
        read: the read keys.
        write: the write keys.
    """

    read: tuple[bytes, ...] = ()
    write: tuple[bytes, ...] = ()

    @classmethod
    def of_file(cls, path: Path | None) -> Keys:
        """Return the keys in a file with a line ``read KEY`` or ``write KEY`` for each; ``#`` starts a comment.

        Raises:
            InputError: the file cannot be read, a line is of another form, or there is no key.
        """
        if path is None:
            return cls()
        keys: dict[str, list[bytes]] = {"read": [], "write": []}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 2 or words[0] not in keys:
                raise InputError(f"{path}: line {number} must be `read KEY` or `write KEY`")
            keys[words[0]].append(words[1].encode())
        if not any(keys.values()):
            raise InputError(f"{path}: has no key; add a line `read KEY` or `write KEY`")
        return cls(tuple(keys["read"]), tuple(keys["write"]))

    def __bool__(self) -> bool:
        """Return whether clients need a key."""
        return bool(self.read or self.write)

    def allows(self, key: bytes, writing: bool) -> bool:
        """Return whether a key allows to read, or to write; the time this takes does not depend on the key."""
        writes = [hmac.compare_digest(key, known) for known in self.write]
        reads = [hmac.compare_digest(key, known) for known in self.read]
        return any(writes) or (not writing and any(reads)) or not self
