"""File formats: for each suffix its reader, the kind of its rows, and the library that it needs.

Plain text is read here, tables in ``tables.py``, and any other format by a function of another file, in a worker
process. A new suffix goes into the table below.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ctx_embed.files import PathInside
from ctx_embed.reading.decoding import MOST_CHARACTERS, Extracted, UnreadableFileError, read_text, reasons
from ctx_embed.reading.encodings import WrongBytesWarning
from ctx_embed.reading.markup import read_markdown
from ctx_embed.reading.opening import Held, suffix_of
from ctx_embed.reading.walking import GENERATED
from ctx_embed.texts import well_formed

# The kinds of rows, as people call them.
TEXT, LABELLED, JSONL, JSON = "lines of text", "label<TAB>text", "JSONL", "a JSON array"
CSV, TSV, PARQUET, SPREADSHEET = "CSV", "TSV", "Parquet", "a spreadsheet"
# The extra that installs the libraries that formats need.
EXTRA = "documents"
# Code whose lines are longer than this on average is for browsers, not for people.
_MINIFIED, _LONG_LINE = {".js", ".mjs", ".cjs", ".css"}, 500
# Marks that generators of code write into the first lines.
_GENERATED = re.compile(r"[#/*;-] *@generated\b|[Gg]enerated\b.{0,200}DO NOT EDIT")
_MARKED_WITHIN = 1000


class Format(NamedTuple):
    """How a format is read: as plain text of a structure, as rows, or by ``module:function`` in a worker process."""

    reader: str = "prose"
    # The kind of its rows, if a folder's file of this format may be a table.
    rows: str | None = None
    # The module that must be installed; None if Python alone can read it.
    needs: str | None = None

    @property
    def apart(self) -> bool:
        """Whether it is read in a worker process, because a file may take unlimited time or memory."""
        return ":" in self.reader

    @property
    def installed(self) -> bool:
        """Whether the library that reads the format is installed."""
        return self.needs is None or find_spec(self.needs) is not None


_CODE = """
.py .pyi .pyw
.c .cc .cpp .cxx .h .hh .hpp .cs .java .kt .kts .scala .go .rs .swift .m .mm .js .jsx .mjs .cjs .ts .tsx .vue
.svelte .php .rb .pl .pm .lua .r .jl .sh .bash .zsh .fish .ps1 .bat .sql .css .scss .less .hs .ml .mli .ex .exs .erl
.clj .dart .groovy .proto .zig .nim .f90 .f95 .pas .v .vhd .asm .s .tf .gradle .cmake .el .lisp .toml .ini .cfg
.conf .yaml .yml .xml
"""
_FORMATS = (
    (Format(), ".txt"),
    (Format("markdown"), ".md .markdown .mdown .mdx .qmd .rmd"),
    (Format("code"), _CODE),
    (Format("rows"), ".log"),
    # A file of JSON may also hold an array, or settings.
    (Format("rows", JSONL), ".jsonl .ndjson .json"),
    (Format("rows", CSV), ".csv"),
    (Format("rows", TSV), ".tsv"),
    (Format("records", PARQUET), ".parquet"),
    (Format("records", SPREADSHEET, "python_calamine"), ".xlsx .xlsm .xlsb .xls .ods"),
    # These files are text, but not for people to read.
    (Format("binary"), ".svg"),
    (Format("web:html"), ".html .htm .xhtml"),
    (Format("web:notebook"), ".ipynb"),
    (Format("office:pptx"), ".pptx .pptm .ppsx .ppsm .potx .potm"),
    (Format("office:docx"), ".docx .docm .dotx .dotm"),
    (Format("office:odt"), ".odt .ott"),
    (Format("office:epub"), ".epub"),
    (Format("office:pdf", needs="pypdfium2"), ".pdf"),
    (Format("office:rtf", needs="striprtf"), ".rtf"),
    (Format("containers:mail"), ".eml .mht .mhtml"),
    (Format("containers:mailbox"), ".mbox"),
    (Format("containers:archive"), ".zip"),
)
FORMATS = {suffix: chosen for chosen, suffixes in _FORMATS for suffix in suffixes.split()}
# Titles that programs write unasked, without a number at their end, and what such titles begin with.
_NO_TITLE = {"untitled", "untitled document", "powerpoint presentation", "word document", "document", "presentation"}
_OF_PROGRAMS = ("microsoft word - ", "microsoft powerpoint - ", "microsoft excel - ")
# Maximum number of files that a file may be in.
_DEEPEST = 4


def format_of(path: str | Path) -> Format:
    """Return the format of a file by its suffix. A file with an unknown suffix is read as text."""
    return FORMATS.get(suffix_of(path), Format())


def extract(path: str, encoding: str | None = None) -> Iterator[Extracted]:
    """Yield the texts of a file, read in this process; an UnreadableFileError says why there is none."""
    chosen = format_of(path)
    # A pipe or a device is no document.
    path = path if isinstance(path, Held | PathInside) else PathInside(path)
    if not chosen.installed:
        raise UnreadableFileError(f"{suffix_of(path)} needs the extra {EXTRA}")
    module, _, function = chosen.reader.partition(":")
    characters = 0
    with reasons(path):
        read = getattr(import_module(f"{__package__}.{module}"), function) if chosen.apart else None
        for extracted in read(path) if read else _plain(path, chosen.reader, encoding):
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
    held = Held(f"{path}/{name}", content, getattr(path, "depth", 0) + 1)
    try:
        if held.depth > _DEEPEST:
            raise UnreadableFileError(f"more than {_DEEPEST} files deep")
        yield from extract(held)
    except UnreadableFileError as error:
        if not error.counted:
            warnings.warn(WrongBytesWarning(f"{held}: not read ({error})"), stacklevel=2)


def _plain(path: str, kind: str, encoding: str | None) -> Iterator[Extracted]:
    """Yield the text of a file that is plain text; code must not be minified, nor say that a program generated it."""
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
