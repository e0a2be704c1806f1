"""Errors that a user can correct, each reported in one line.

Every mistake of a user (a missing file, a broken line, an unknown name) raises :class:`InputError`; the command line
turns it into one line and exit code 1. Any other exception is a bug of ours and keeps its traceback.
"""

import difflib
import json
import re
import reprlib
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

# The end of messages about damage that cannot be repaired from the rest of an index.
REMEDY = "restore it from a copy or build the index again"
_DISTRIBUTION = "ctx-embed"
# Packages of the default installation that requirements-light.txt leaves out, and what installs each without torch.
_LEFT_OUT = {
    "datasets": "datasets",
    "pyarrow": "pyarrow",
    "rich": "rich",
    **dict.fromkeys(("scipy", "sklearn"), "scikit-learn rich"),
    **dict.fromkeys(("sentence_transformers", "torch", "transformers")),
}
# Extras whose packages need torch.
_ON_TORCH = ("mteb", "peers", "train")
# Secrets in an address: the password after a user name, and the value of an option such as ``password`` or ``api_key``.
# An address that was made a path has one slash instead of two.
_PASSWORD = re.compile(r"(:/{1,2}[^:/@\s]*):.*")
_SECRET = re.compile("pass|secret|token|key", re.IGNORECASE)


# Maximum number of characters of a quoted value, of names in a list, and of the products of lengths of a wrong name and
# the known ones that it is compared with: difflib's time is in proportion, and no other thread runs meanwhile.
SHOWN, MOST_NAMES, MOST_COMPARED = 80, 24, 120_000
# Maximum number of texts that a warning quotes.
MOST_EXAMPLES = 3


class _Quoter(reprlib.Repr):
    """Writes values with work that does not grow with the lengths of strings and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = SHOWN

    def repr_int(self, value: int, level: int) -> str:
        """Return an integer; Python refuses to write one of more than 4,300 digits."""
        return repr(value) if value.bit_length() < 4 * SHOWN else f"an integer of {value.bit_length():,} bits"


class InputError(ValueError):
    """The input cannot be used. The message says what is needed, what was given and what to do."""


class BusyError(InputError):
    """Another process is writing. The same call may succeed later."""


class LateError(InputError):
    """A search took longer than its deadline. It may succeed with a later deadline, or if it asks for less."""


class UnwritableError(InputError):
    """The disk is full or not writable; nothing has changed."""


class OtherModelError(InputError):
    """The model of an index is gone, or has become another one. Its documents must be embedded again."""


class DamagedError(InputError):
    """Stored files are damaged. The message says how to replace them."""


class UnknownFieldsWarning(UserWarning):
    """A filter compares a field that no document has, or a number with a field of strings."""


class UnknownTextsWarning(UserWarning):
    """A model cannot read some texts: it knows fewer than half of their words, or no token of them.

    ``first`` are the first of these ``count`` texts, or their ids; ``texts`` is the number of all, None if unknown.
    """

    def __init__(self, first: Sequence[str], count: int, texts: int | None, zeros: bool = True) -> None:
        self.first, self.count, self.texts, self.zeros = first[:MOST_EXAMPLES], count, texts, zeros
        if texts == 1:
            result = "embedded as zeros, so it is like no other text" if zeros else "embedded as any other such text"
            is_empty = not first[0] or first[0].isspace()
            said = "is empty" if is_empty else f"{quoted(first[0])} has too few words that the model knows"
            super().__init__(f"the text {said}: it is {result}")
        else:
            result = "embedded as zeros, so they are like no other text" if zeros else "all embedded alike"
            share = f"{count:,} texts" if texts is None else f"{count} of {texts} texts"
            named = examples(self.first, count)
            super().__init__(f"{share} have too few words that the model knows ({named}): they are {result}")


def warn(message: str | Warning) -> None:
    """Warn the caller of this package: the warning names its line."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ctx_embed"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def shortened(text: str, most: int = SHOWN) -> str:
    """Return a text, of more than ``most`` characters only its start and end."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}...{text[len(text) - (most - 1) // 2 + 1 :]}"


def quoted(value: object) -> str:
    """Return what a user gave as errors quote it: its ``repr``, shortened to 80 characters."""
    return shortened(_Quoter().repr(value))


def examples(things: Iterable[object], count: int) -> str:
    """Return the first few of ``count`` things, quoted, for a message that says how many there are."""
    first = [quoted(thing) for thing in islice(things, MOST_EXAMPLES)]
    return ", ".join([*first, *["..."] * (count > len(first))])


def listed_names(names: Iterable[object], quote: Callable[[object], str] = str) -> str:
    """Return names for a message, the first 24 of them, each shortened; ``none`` if there are none."""
    first = list(islice(names, MOST_NAMES + 1))
    shown = [shortened(quote(name)) for name in first[:MOST_NAMES]]
    return ", ".join([*shown, *["..."] * (len(first) > MOST_NAMES)]) or "none"


def nearest_name(name: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'minilm'?`` with the known name nearest to a wrong one; empty if none is near.

    Names of more than 80 characters are near to none, and as many known ones are compared as 10 ms allow.
    """
    if len(wrong := str(name)) > SHOWN:
        return ""
    by_lower, left = {}, MOST_COMPARED
    for candidate in known:
        if len(candidate) <= SHOWN and (left := left - len(wrong) * len(candidate)) >= 0:
            by_lower[candidate.lower()] = candidate
    near = difflib.get_close_matches(wrong.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]!r}?" if near else ""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """Return the error for a name that is not one of ``known``, with the nearest known name as a suggestion."""
    names = sorted(known)
    hint = nearest_name(name, names)
    return InputError(f"unknown {kind} {quoted(name)}: {hint}{' ' if hint else ''}known are {listed_names(names)}")


def described(value: object) -> str:
    """Return the kind of a value, for a message: ``None``, ``an int``, ``a list``."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def installation(extra: str = "", origin: str | None = None) -> str:
    """Return the command that installs this package again from its origin: a clone, a wheel or a package index.

    ``origin`` is the ``direct_url.json`` of an installation (PEP 610); None: of this installation.
    """
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    if origin is None:
        # A clone also contains the egg-info of its installation, which does not record the origin.
        found = (each.read_text("direct_url.json") for each in metadata.distributions(name=_DISTRIBUTION))
        origin = next(filter(None, found), None)
    fields = json.loads(origin) if origin else {}
    url = urlsplit(fields.get("url", ""))
    path = Path(url2pathname(url.path))
    editable = "-e " if fields.get("dir_info", {}).get("editable") else ""
    source = str(path) if url.scheme == "file" and path.exists() else _DISTRIBUTION
    if not extra:
        return f"pip install {editable}{shlex.quote(source)}"
    return f'pip install {editable}"{source}[{extra}]"'


def left_out(what: str, error: ModuleNotFoundError) -> str | None:
    """Return how to install the missing package that ``what`` needs; None if the light installation should have it."""
    package = (error.name or "").partition(".")[0]
    if package not in _LEFT_OUT:
        return None
    command = installation() if _LEFT_OUT[package] is None else f"pip install {_LEFT_OUT[package]}"
    return f"{what} needs {package}, which the light installation leaves out: {command}"


@contextmanager
def naming_left_out(what: str) -> Iterator[None]:
    """Turn the absence of a package that the light installation leaves out into an error of one line."""
    try:
        yield
    except ModuleNotFoundError as error:
        said = left_out(what, error)
        if said is None:
            raise
        raise InputError(said) from None


def missing_extra(what: str, extra: str) -> InputError:
    """Return the error for a missing extra that ``what`` needs, with the command that installs it.

    In a light installation that command names the packages of the extra: the extra itself would bring torch. On Windows
    it leaves out packages with an environment marker: in extras without torch, every marker excludes Windows.
    """
    from importlib import metadata, util

    command = installation(extra)
    if util.find_spec("sentence_transformers") is None and extra not in _ON_TORCH:
        of_extra = re.compile(rf"([^;]*);(?:(.*) and)? *extra == ['\"]{re.escape(extra)}['\"]")
        for found in metadata.distributions(name=_DISTRIBUTION):
            needed = [match for line in found.requires or () if (match := of_extra.fullmatch(line))]
            here = [name for name, marker in map(re.Match.groups, needed) if sys.platform != "win32" or not marker]
            if here:
                command = f"pip install {' '.join(map(shlex.quote, here))}"
                break
    return InputError(f"{what} needs the extra {extra}: {command}")


def without_secrets(text: str) -> str:
    """Return an address, or a message with addresses, without passwords and keys."""
    return re.sub(r"(&?)([^&#\s]+)", _without_secret, re.sub(r"\S+", _without_password, text))


def _without_password(word: re.Match[str]) -> str:
    before, at, after = word[0].rpartition("@")
    return _PASSWORD.sub(r"\1", before) + at + after


def _without_secret(found: re.Match[str]) -> str:
    """Return a part of an address between ``&`` and ``&`` with stars for a secret: what follows its name and ``=``."""
    parts = found[2].split("=")
    for place, part in enumerate(parts[:-1]):
        name = part if found[1] and not place else part.partition("?")[2]
        if _SECRET.search(name):
            return found[1] + "=".join([*parts[: place + 1], "***"])
    return found[0]
