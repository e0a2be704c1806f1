"""File formats: the reader of each suffix, the library it needs, and whether it runs in a worker process.

Called by :mod:`ctx_embed.reading.workers` and its worker processes.
Each format has its reader in another file, plain text in this one; add a new suffix below.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from ctx_embed.reading.decoding import MOST_CHARACTERS, Extracted, Held, UnreadableFileError, read_text
from ctx_embed.reading.encodings import WrongBytesWarning
from ctx_embed.reading.markup import read_markdown
from ctx_embed.reading.opening import suffix_of as suffix_of
from ctx_embed.reading.spreadsheets import LIBRARY, SPREADSHEETS
from ctx_embed.reading.walking import GENERATED
from ctx_embed.texts import well_formed

# The extra that installs the libraries that formats need.
EXTRA = "documents"
# Code whose lines are longer than this on average is for browsers, not for people.
_MINIFIED, _LONG_LINE = {".js", ".mjs", ".cjs", ".css"}, 500
# Marks that generators of code write into the first lines.
_GENERATED = re.compile(r"[#/*;-] *@generated\b|[Gg]enerated\b.{0,200}DO NOT EDIT")
_MARKED_WITHIN = 1000


class Format(NamedTuple):
    """How a format is read: as a kind of plain text, or by a function of a module of this package."""

    reader: str
    # The module that must be installed; None if Python alone can read it.
    needs: str | None = None

    @property
    def apart(self) -> bool:
        """Whether it is read in a worker process, because a file may take unlimited time or memory."""
        return not self.reader.startswith("plain:")

    @property
    def is_list(self) -> bool:
        """Whether a file that is given by name, not by its folder, holds a list of texts: lines, a table or JSON."""
        return self.reader in ("plain:prose", "plain:rows", "plain:records", "plain:binary")

    @property
    def installed(self) -> bool:
        """Whether the library that reads the format is installed."""
        return self.needs is None or find_spec(self.needs) is not None


TEXT = Format("plain:prose")
_SUFFIXES = {
    "plain:markdown": ".md .markdown .mdown .mdx .qmd .rmd",
    "plain:code": """
.py .pyi .pyw
.c .cc .cpp .cxx .h .hh .hpp .cs .java .kt .kts .scala .go .rs .swift .m .mm .js .jsx .mjs .cjs .ts .tsx .vue
.svelte .php .rb .pl .pm .lua .r .jl .sh .bash .zsh .fish .ps1 .bat .sql .css .scss .less .hs .ml .mli .ex .exs .erl
.clj .dart .groovy .proto .zig .nim .f90 .f95 .pas .v .vhd .asm .s .tf .gradle .cmake .el .lisp .toml .ini .cfg
.conf .yaml .yml .xml
""",
    "plain:rows": ".csv .tsv .json .jsonl .ndjson .log",
    "plain:records": ".parquet",
    # These files are text, but not for people to read.
    "plain:binary": ".svg",
    "web:html": ".html .htm .xhtml",
    "web:notebook": ".ipynb",
    "office:pptx": ".pptx .pptm .ppsx .ppsm .potx .potm",
    "office:docx": ".docx .docm .dotx .dotm",
    "office:odt": ".odt .ott",
    "office:epub": ".epub",
    "containers:mail": ".eml .mht .mhtml",
    "containers:mailbox": ".mbox",
    "containers:archive": ".zip",
}
FORMATS = {suffix: Format(reader) for reader, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
FORMATS |= {".pdf": Format("office:pdf", "pypdfium2"), ".rtf": Format("office:rtf", "striprtf")}
FORMATS |= dict.fromkeys(SPREADSHEETS, Format("plain:records", LIBRARY))
# Titles that programs write unasked, without a number at their end, and what such titles begin with.
_NO_TITLE = {"untitled", "untitled document", "powerpoint presentation", "word document", "document", "presentation"}
_OF_PROGRAMS = ("microsoft word - ", "microsoft powerpoint - ", "microsoft excel - ")
# Maximum number of files that a file may be in.
_DEEPEST = 4


def format_of(path: str) -> Format:
    """Return the format of a file by its suffix. A file with an unknown suffix is read as text."""
    return FORMATS.get(suffix_of(path), TEXT)


def extract(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield the texts of a file, read in this process; an UnreadableFileError says why there is none."""
    chosen = format_of(path)
    if not chosen.installed:
        raise UnreadableFileError(f"{suffix_of(path)} needs the extra {EXTRA}")
    module, _, function = chosen.reader.partition(":")
    characters = 0
    found = (
        getattr(import_module(f"{__package__}.{module}"), function)(path) if chosen.apart else _plain(path, encoding)
    )
    for extracted in found:
        characters += len(extracted.text)
        if characters > MOST_CHARACTERS:
            raise UnreadableFileError(f"more than {MOST_CHARACTERS // 1_000_000} million characters of text")
        if extracted.text.strip():
            usual = (extracted.title or "").strip("() ").lower()
            is_usual = usual.rstrip("0123456789 -_.") in _NO_TITLE or usual.startswith(_OF_PROGRAMS)
            # Escapes such as \ud800 in JSON may be lone surrogates.
            yield replace(extracted, text=well_formed(extracted.text), title=None if is_usual else extracted.title)


def inside(path: str, name: str, content: bytes) -> Iterator[Extracted]:
    """Yield the texts of a file that another one holds. A warning says why one has none, unless it is binary."""
    held = Held(f"{path}/{name}")
    held.content, held.depth = content, getattr(path, "depth", 0) + 1
    try:
        if held.depth > _DEEPEST:
            raise UnreadableFileError(f"more than {_DEEPEST} files deep")
        yield from extract(held)
    except UnreadableFileError as error:
        if not error.counted:
            warnings.warn(WrongBytesWarning(f"{held}: not read ({error})"), stacklevel=2)


def _plain(path: str, encoding: str | None) -> Iterator[Extracted]:
    """Yield the text of a file that is plain text; code must not be minified, nor say that a program generated it."""
    kind = format_of(path).reader.removeprefix("plain:")
    if kind == "binary":
        raise UnreadableFileError("binary", counted=True)
    if kind == "records":
        said = "holds records, each of which is a document; leave --documents out, or choose records"
        raise UnreadableFileError(said)
    content = read_text(path, encoding)
    if kind == "markdown":
        yield read_markdown(content)
        return
    if kind == "code":
        is_minified = suffix_of(path) in _MINIFIED and len(content) > _LONG_LINE * (2 + content.count("\n"))
        if is_minified or _GENERATED.search(content[:_MARKED_WITHIN]):
            raise UnreadableFileError("minified" if is_minified else GENERATED, counted=True)
    yield Extracted(content, kind, line=1)
