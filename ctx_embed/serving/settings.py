"""The settings of a server: what it serves, to whom, and within which limits."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

from ctx_embed.errors import InputError

MIB = 1 << 20
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Settings:
    """The settings of a server; all worker processes share them.

    Args:
        indexes: folders of search indexes; each is served under the name of its folder.
        models: model folders or ``default``; the first one embeds, and those with labels classify.
        aliases: further names of the model that embeds.
        rerankers: SentenceTransformers or CrossEncoders, by name or folder, for searches and `/v1/rerank`.
        host: address to listen on.
        root_path: path under which a proxy serves the server, such as ``/search``; empty for ``/``.
        api_key_file: file of keys, see :class:`Keys`; None requires no key.
        no_keys: whether other machines may read and write without a key.
        cors: origins whose pages may call the server; ``*`` allows all.
        body_bytes: largest request body.
        answer_bytes: largest answer.
        texts: most texts of a request.
        text_characters: longest text.
        explained_characters: longest query and longest text of an explanation.
        hits: most hits of a search: its queries times the hits of each, skipped ones and neighbours included.
        seconds: time limit of a request, and again of sending its answer.
        requests: most requests that a worker process works on at a time.
        drain: seconds between SIGTERM and the end of listening, during which `/readyz` answers 503.
    """

    indexes: tuple[Path, ...] = ()
    models: tuple[str, ...] = ("default",)
    aliases: tuple[str, ...] = ()
    rerankers: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    root_path: str = ""
    api_key_file: Path | None = None
    no_keys: bool = False
    cors: tuple[str, ...] = ()
    body_bytes: int = 16 * MIB
    answer_bytes: int = 16 * MIB
    texts: int = 2048
    text_characters: int = 1_000_000
    explained_characters: int = 10_000
    hits: int = 10_000
    seconds: float = 60.0
    requests: int = 256
    drain: float = 1.0

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
class Key:
    """A key that clients send.

    Args:
        secret: what they send.
        writes: whether it may change indexes; every key may read.
        name: its name in the log.
    """

    secret: bytes
    writes: bool
    name: str


@dataclass(frozen=True)
class Keys:
    """The keys of a server; without any, clients need none."""

    known: tuple[Key, ...] = ()

    @classmethod
    def of_file(cls, path: Path | None) -> Keys:
        """Return the keys in a file with a line ``read KEY NAME`` or ``write KEY NAME`` for each.

        The name is optional; the log then says ``key 3`` for the key in line 3. ``#`` starts a comment.

        Raises:
            InputError: the file cannot be read, a line has another form, or there is no key.
        """
        if path is None:
            return cls()
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
        keys = []
        for number, line in enumerate(lines, 1):
            kind, *rest = line.partition("#")[0].split() or [""]
            if not kind:
                continue
            if kind not in ("read", "write") or len(rest) not in (1, 2):
                raise InputError(f"{path}: line {number} must be `read KEY [NAME]` or `write KEY [NAME]`")
            keys.append(Key(rest[0].encode(), kind == "write", rest[1] if len(rest) == 2 else f"key {number}"))
        if not keys:
            raise InputError(f"{path}: has no key; add a line `read KEY` or `write KEY`")
        return cls(tuple(keys))

    def __bool__(self) -> bool:
        """Return whether clients need a key."""
        return bool(self.known)

    def find(self, secret: bytes) -> Key | None:
        """Return the key that a client has sent, in a time that does not depend on it; None if it is unknown."""
        matching = [key for key in self.known if hmac.compare_digest(secret, key.secret)]
        return max(matching, key=lambda key: key.writes, default=None)
