"""File formats: the reader of each suffix, the library it needs, and whether it runs in a worker process.

Called by :mod:`ctx_embed.documents.extraction` and its worker processes.
A format changes in its reader's file; a new suffix is named below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec

from ctx_embed.documents.decoding import MOST_CHARACTERS, Extracted, UnreadableFileError
from ctx_embed.rows.opening import suffix_of as suffix_of
from ctx_embed.texts import well_formed

# The extra that installs the libraries that formats need.
EXTRA = "documents"


@dataclass(frozen=True)
class Format:
    """A format of files: its usual name, and the module of this package and the function there that reads it."""

    name: str
    reader: str
    # The module that must be installed; None if Python alone can read it.
    needs: str | None = None
    # Whether it is read in a worker process, because a file may take unlimited time or memory.
    apart: bool = True

    @property
    def is_list(self) -> bool:
        """Whether a file that is named, outside a folder, is a list of texts: lines of text, tables and JSON."""
        return self.reader in ("plain:text", "plain:rows", "plain:records", "plain:binary")

    @property
    def installed(self) -> bool:
        """Whether the library that reads the format is installed."""
        return self.needs is None or find_spec(self.needs) is not None


TEXT = Format("text", "plain:text", apart=False)
_CODE_SUFFIXES = """
.c .cc .cpp .cxx .h .hh .hpp .cs .java .kt .kts .scala .go .rs .swift .m .mm .js .jsx .mjs .cjs .ts .tsx .vue
.svelte .php .rb .pl .pm .lua .r .jl .sh .bash .zsh .fish .ps1 .bat .sql .css .scss .less .hs .ml .mli .ex .exs .erl
.clj .dart .groovy .proto .zig .nim .f90 .f95 .pas .v .vhd .asm .s .tf .gradle .cmake .el .lisp .toml .ini .cfg
.conf .yaml .yml .xml
"""
FORMATS: dict[str, Format] = {
    **dict.fromkeys(
        [".md", ".markdown", ".mdown", ".mdx", ".qmd", ".rmd"], Format("Markdown", "plain:markdown", apart=False)
    ),
    **dict.fromkeys([".py", ".pyi", ".pyw"], Format("Python", "plain:code", apart=False)),
    **dict.fromkeys(_CODE_SUFFIXES.split(), Format("source code", "plain:code", apart=False)),
    **dict.fromkeys([".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".log"], Format("rows", "plain:rows", apart=False)),
    **dict.fromkeys([".html", ".htm", ".xhtml"], Format("HTML", "web:html")),
    ".rst": Format("reStructuredText", "plain:restructured_text", apart=False),
    ".pdf": Format("PDF", "office:pdf", "pypdfium2"),
    ".pptx": Format("PowerPoint", "office:pptx"),
    ".docx": Format("Word", "office:docx"),
    ".odt": Format("OpenDocument", "office:odt"),
    ".epub": Format("EPUB", "office:epub"),
    ".ipynb": Format("notebook", "plain:notebook"),
    # It is text, but not for people to read.
    ".svg": Format("image", "plain:binary", apart=False),
    ".parquet": Format("Parquet", "plain:records", apart=False),
}


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
    given = (path,) if chosen.apart else (path, encoding)
    for extracted in getattr(import_module(f"{__name__}.{module}"), function)(*given):
        characters += len(extracted.text)
        if characters > MOST_CHARACTERS:
            raise UnreadableFileError(f"more than {MOST_CHARACTERS // 1_000_000} million characters of text")
        if extracted.text.strip():
            # Escapes such as \ud800 in JSON may be lone surrogates.
            yield replace(extracted, text=well_formed(extracted.text))
