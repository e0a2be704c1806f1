"""The settings of a server: what it serves, to whom, and within which limits."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ctx_embed.errors import InputError, quoted
from ctx_embed.options import option, require_valid

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# The sections of the command's help.
SERVED, ACCESS, LIMITS, RUNNING = "What it serves", "To whom", "Limits", "Running"


@dataclass(frozen=True)
class Settings:
    """The settings of a server; all worker processes share them."""

    indexes: Sequence[Path] = option(
        (), "Folders of search indexes; each is served under the name of its folder.", command=False
    )
    model: Sequence[str] = option(
        ("default",),
        "The model behind /v1/embeddings; repeat it for classifiers (/v1/classify).",
        section=SERVED,
        metavar="PATH|default",
    )
    alias: Sequence[str] = option(
        (),
        "A further name of the model that embeds, for programs that insist on one: text-embedding-3-small.",
        section=SERVED,
        metavar="NAME",
    )
    reranker: Sequence[str] = option(
        (),
        "A model with which searches and /v1/rerank may score passages: minilm, a name or a folder; may be repeated.",
        section=SERVED,
        metavar="NAME|PATH",
    )
    host: str = option(
        "127.0.0.1", "Address to listen on; any but this machine's own needs keys.", section=ACCESS, metavar="ADDRESS"
    )
    root_path: str = option("", "Path under which a proxy serves it, e.g. /search.", section=ACCESS, metavar="PATH")
    api_key_file: Path | None = option(
        None, "File with lines `read KEY [NAME]` and `write KEY [NAME]`.", section=ACCESS, default_is="no keys"
    )
    no_keys: bool = option(False, "Listen on other addresses without keys: anyone may read and write.", section=ACCESS)
    cors: Sequence[str] = option(
        (), "Origin whose pages may call the server, or * for all.", section=ACCESS, metavar="ORIGIN"
    )
    max_body: int = option(8, "Largest request body.", least=1, section=LIMITS, metavar="MIB")
    max_answer: int = option(16, "Largest answer.", least=1, section=LIMITS, metavar="MIB")
    max_texts: int = option(2048, "Maximum number of texts in a request.", least=1, section=LIMITS)
    max_characters: int = option(1_000_000, "Maximum characters in a text.", least=1, section=LIMITS)
    max_hits: int = option(
        10_000,
        "Maximum hits of a search, skipped ones and neighbours included, over all its queries.",
        least=1,
        section=LIMITS,
    )
    max_explained: int = option(10_000, "Maximum characters in a text to explain.", least=1, section=LIMITS)
    max_requests: int = option(
        256,
        "Maximum requests that a process works on at a time; others get status 429 and should try again later.",
        least=1,
        section=LIMITS,
    )
    timeout: float = option(
        60.0, "Time limit for a request, and again for sending its answer.", above=0, section=RUNNING, metavar="SECONDS"
    )
    search_timeout: float = option(
        10.0, "Time limit for a search; a request may ask for less.", above=0, section=RUNNING, metavar="SECONDS"
    )
    head_seconds: float = option(10.0, "Time for the head of a request to arrive.", above=0, command=False)
    read_seconds: float = option(
        10.0, "Time after which Linux ends the connection of a client that reads nothing.", above=0, command=False
    )

    def __post_init__(self) -> None:
        require_valid(self)
        for origin in self.cors:
            if origin != "*" and not re.fullmatch(r"https?://[^/*\s]+", origin):
                raise InputError(f"cors must be * or an origin such as https://app.example, got {quoted(origin)}")

    @property
    def body_bytes(self) -> int:
        """The size of the largest request body."""
        return self.max_body << 20

    @property
    def answer_bytes(self) -> int:
        """The size of the largest answer."""
        return self.max_answer << 20

    @property
    def is_local(self) -> bool:
        """Whether the server runs for this machine alone: no key, proxy, address or origin lets others in."""
        return self.host in LOOPBACK and not (self.api_key_file or self.no_keys or self.root_path or self.cors)

    def names(self) -> dict[str, Path]:
        """Return the folder of each index by its name on the server; raise an InputError if two share a name."""
        named: dict[str, Path] = {}
        for path in (Path(index).absolute() for index in self.indexes):
            if named.setdefault(path.name, path) != path:
                raise InputError(
                    f"{named[path.name]} and {path} have the same name {quoted(path.name)}; rename one of them"
                )
        return named


@dataclass(frozen=True)
class Key:
    """A key: the secret that clients send, whether they may change indexes with it, and its name in the log."""

    secret: bytes
    writes: bool
    name: str


def read_keys(path: Path | None) -> list[Key]:
    """Return the keys in a file; a key without a name is named by its line. Without a file there are no keys."""
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    keys = []
    for number, line in enumerate(lines, 1):
        words = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].split()
        if words and (words[0] not in ("read", "write") or len(words) not in (2, 3)):
            raise InputError(f"{path}: line {number} must be `read KEY [NAME]` or `write KEY [NAME]`")
        if words:
            kind, secret, name = (*words, f"key {number}")[:3]
            keys.append(Key(secret.encode(), kind == "write", name))
    if not keys:
        raise InputError(f"{path}: has no key; add a line `read KEY` or `write KEY`")
    return keys
