"""Every entry that takes bytes from outside, with families of odd inputs of any size."""

import json
import tempfile
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import openpyxl
import pyarrow
from pyarrow import parquet

from ctx_embed import SearchIndex, errors
from ctx_embed.classify.labelled import Classes, as_array
from ctx_embed.cli.main import one_line, printable
from ctx_embed.cli.options import named_values
from ctx_embed.cli.predict import WRITERS as WRITERS_OF_PREDICTIONS, Row
from ctx_embed.deduplication import grams, normalized
from ctx_embed.explanations import contributions
from ctx_embed.grep import grep
from ctx_embed.index import hits, words as by_words
from ctx_embed.index.chunking import checked_chunk, chunker, sentences
from ctx_embed.index.documents import checked_id, metadata_json
from ctx_embed.index.faiss_file import checked_factory
from ctx_embed.index.filters import moment_of, parse_filter
from ctx_embed.model import Model
from ctx_embed.reading import blocks, tables
from ctx_embed.reading.decoding import decode
from ctx_embed.reading.encodings import require_encoding
from ctx_embed.reading.formats import FORMATS, extract
from ctx_embed.reading.rows import read_columns, read_documents, read_labelled_rows
from ctx_embed.reading.walking import Globs, Rules
from ctx_embed.reading.workers import Worker, rows_of
from ctx_embed.runtime import Embedder
from ctx_embed.text import normalisation
from ctx_embed.texts import well_formed
from ctx_embed.training.options import read_recipe
from tests.bounded.growth import ALONE, REFUSALS, TEXTS, Entry, Make, around, different, repeated, strings
from tests.bounded.requests import requests
from tests.reading.samples import FIRST, WRITERS

# Texts whose reading or embedding takes longest.
MEANING = {name: TEXTS[name] for name in ("words", "mixed", "'\\xad'", "'\\ufdfa'")}
WORDS = {"words": TEXTS["words"]}

_temporary = tempfile.TemporaryDirectory()
FOLDER = Path(_temporary.name)
_numbers = count()


@cache
def embedder() -> Embedder:
    return Embedder.load()


def put(path: Path, content: Any) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))


def files(name: str, families: dict[str, Make], write: Callable[[Path, Any], Any] = put) -> dict[str, Make]:
    """Write what each family makes into a file of this name, and return its path."""

    def written(make: Make, n: int) -> str:
        write(FOLDER / name, make(n))
        return str(FOLDER / name)

    return {family: partial(written, make) for family, make in families.items()}


@cache
def cutter(chunk: str) -> Callable[[Any], Any]:
    return chunker(chunk, Model.of(embedder()))


def cut(chunk: str, text: str) -> Any:
    return cutter(chunk)([(well_formed(text), ())])


def all_of(read: Callable[..., Any], *arguments: Any) -> Callable[[Any], Any]:
    return lambda given: deque(read(given, *arguments), 0)


def merged(n: int) -> str:
    """Front matter whose mappings merge those before them ten times each."""
    levels = range(1, n // 64 + 1)
    lines = [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}" for level in levels]
    return "\n".join(["---", "a0: &a0 {x: 1}", *lines, "---", "a"])


# Formats of documents: by what they repeat, or else each part of a sample of the format, repeated where it stands

FORMAT_TEXTS: dict[str, dict[str, Make]] = {
    "prose": strings("a", "\n", "\f"),
    "markdown": strings("---\n", "a: b\n", "# a\n", "```\n", "<!--", "|", "- ", "[", "&amp;", "\\")
    | {"merged": merged},
    "code": strings("x = ", "\t", "(", "inline(g) ", "a, ", "// @generated", "def f", "\n"),
    "rows": strings("a", ",", '"', "\n"),
    "records": {},
    "binary": {},
    "web:html": strings("<div>", "<p ", "a='", '="', "&#1;", "<!--", "</div>", "<script>", "<td>", "<nav>", "<", "\n"),
}


def archived(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def repeated_elements(members: dict[str, bytes]) -> dict[str, Make]:
    """Families of a format of archives: each kind of element of the parts with text, and each reference, n times."""

    def family(name: str, tag: str, nested: bool, n: int) -> dict[str, bytes]:
        root = ElementTree.fromstring(members[name])
        parent, child = next((of, child) for of in root.iter() for child in of if child.tag == tag)
        one = ElementTree.tostring(child)
        opened, closed = (b"<%b%b>" % (end, tag.rpartition("}")[2].encode()) for end in (b"", b"/"))
        parent.remove(child)
        parent.text = "\x1a"
        some = n // len(opened + closed if nested else one) + 1
        inside = opened * some + closed * some if nested else one * some
        return members | {name: ElementTree.tostring(root).replace(b"&#26;", b"\x1a").replace(b"\x1a", inside)}

    texts = [name for name, content in members.items() if FIRST.encode() in content]
    many = lambda n: members | {f"{of}{texts[0]}": members[texts[0]] for of in different(n // 32)}  # noqa: E731
    families: dict[str, Make] = {"files": many}
    for name, content in members.items():
        if content.startswith(b"<") and (name in texts or name.endswith((".rels", ".opf"))):
            elements = list(ElementTree.fromstring(content).iter())
            tags = sorted({child.tag for of in elements for child in of})
            for tag in tags[:: len(tags) // 4 + 1]:
                families[f"{name} {tag.rpartition('}')[2]}"] = partial(family, name, tag, False)
            if name in texts:
                # In itself, what holds most, of the kinds that occur more than once.
                often = Counter(of.tag for of in elements)
                whole = max(elements[1:], key=lambda of: (often[of.tag] > 1, sum(1 for _ in of.iter())))
                families[f"{name} nested"] = partial(family, name, whole.tag, True)
    return families


def repeated_lines(content: bytes) -> dict[str, Make]:
    """Families of any other format: each line of a sample, or the middle of its bytes, n times where it stands."""
    lines = content.splitlines(keepends=True)
    if len(lines) == 1:
        lines = [line + b">" for line in lines[0].split(b">")]

    def family(place: int, n: int) -> bytes:
        return b"".join([*lines[:place], lines[place] * (n // len(lines[place]) + 1), *lines[place + 1 :]])

    return {f"line {place}": partial(family, place) for place in range(0, len(lines), len(lines) // 8 + 1)}


def formats() -> Iterator[tuple[str, Entry]]:
    """The readers of :data:`FORMATS`. Without texts or a sample of its own, a new one raises a KeyError."""
    first = {chosen.reader: suffix for suffix, chosen in reversed(FORMATS.items())}
    for reader, suffix in first.items():
        families, write, sample = FORMAT_TEXTS.get(reader), put, FOLDER / f"sample{suffix}"
        if families is None:
            WRITERS[suffix[1:]](sample)
            if zipfile.is_zipfile(sample):
                write, archive = archived, zipfile.ZipFile(sample)
                families = repeated_elements({name: archive.read(name) for name in archive.namelist()})
            else:
                families = repeated_lines(sample.read_bytes())
        yield f"format {reader}", Entry(all_of(extract), files(f"odd{suffix}", families, write), 1 << 16)


# Tables


def workbook(path: Path, rows: list[list[str | None]]) -> None:
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    for row in rows:
        sheet.append(row)
    book.save(path)


def cells(head: str, by: str, families: dict[str, Make]) -> dict[str, Make]:
    """Families of tables of text: those of cells below a head, many columns, and many without a name."""
    return around(head, families) | {
        "columns": lambda n: by.join(["text", *different(n)]) + "\n" + by.join("1" * (n // 6 + 2)),
        "without names": lambda n: f"text{by * (n // 2)}\n" + "a\n" * (n // 4),
    }


KEYS = {
    "keys": lambda n: json.dumps({"text": "a", **dict.fromkeys(different(n), 1)}),
    "a name": lambda n: json.dumps({"text": "a", "b" * n: 1}),
    "a list": lambda n: json.dumps({"text": "a", "b": ["a"] * (n // 4)}),
    "nested": lambda n: '{"text": "a", "b": ' + "[" * (n // 2) + "]" * (n // 2) + "}",
    "a text": lambda n: json.dumps({"text": "a" * n}),
}
CELLS = strings("a", '"', ",", "\n", "\t", '""')
ROWS: dict[str, dict[str, Make]] = {
    tables.TEXT: files("odd.txt", {**CELLS, "one": lambda n: "text,b\n" + "a," * (n // 2)}),
    tables.LABELLED: files("odd.txt", {"labels": lambda n: "".join(f"{word}\ta\n" for word in different(n))}),
    tables.JSONL: files("odd.jsonl", {**KEYS, "lines": lambda n: '{"text": "a"}\n' * (n // 14 + 1)}),
    tables.JSON: files(
        "odd.json",
        {
            **around("[", KEYS, "]"),
            "items": lambda n: "[" + '{"text": "a"},\n' * (n // 14 + 1),
            "lines": lambda n: '[{"text": "a",' + "\n" * n + '"b": 1}]',
            **strings("[", " ", "{", "\n", ","),
        },
    ),
    tables.CSV: files("odd.csv", cells("text\n", ",", CELLS)),
    tables.TSV: files("odd.tsv", cells("text\tb\n", "\t", strings("a", "\t"))),
    tables.PARQUET: files(
        "odd.parquet",
        {
            "rows": lambda n: {"text": ["a"] * (n // 16 + 1)},
            "columns": lambda n: {"text": ["a"], **{name: [1] for name in different(n // 16)}},
            "a text": lambda n: {"text": ["a" * n]},
            "a list": lambda n: {"text": ["a"], "b": [["a"] * (n // 16 + 1)]},
        },
        lambda path, columns: parquet.write_table(pyarrow.table(columns), path),
    ),
    tables.SPREADSHEET: files(
        "odd.xlsx",
        {
            "rows": lambda n: [["text"], *[["a"]] * (n // 64 + 1)],
            "columns": lambda n: [["text", *different(n // 64)], ["a"]],
            # A sheet is read as a rectangle: it has bounds of its own, and beyond them the worker's end it.
            "far to the right": lambda n: [["text"], *[["a"]] * (n // 64), [*[None] * 256, "b"]],
        },
        workbook,
    ),
}


def rows(path: str) -> None:
    # What a worker does counts too.
    with mock.patch.object(Worker, "ask", lambda _, path: rows_of(path)):
        deque(read_documents(path), 0)


# The parameters of a header of mail
PARAMETERS = strings('a="', ";", '\\"', "*0=a;") | {"names": lambda n: "=a;".join(different(n))}
HEADERS = files("odd.eml", around("Subject: s\nContent-Type: text/plain; ", PARAMETERS, "\n\na"))
LABELS = files("odd.tsv", {**strings("a\tb\n", ",", "\t"), "many": lambda n: ",".join(different(n)) + "\ta\n"})


# An index of some documents, of which one is odd


@cache
def index(name: str = "notes") -> SearchIndex:
    found = SearchIndex.create(FOLDER / f"{name}.index", chunk="passages:64")
    found.add(["the cat sat on the mat", "a dog barked", "rain fell all night"], ["cat", "dog", "rain"])
    found.warns_of_fields = False
    return found


def held(text: str, metadata: dict[str, Any]) -> str:
    """Put a text and its metadata into the index, and return the text."""
    index().upsert([text], ["odd"], [metadata])
    return text


HELD = {
    "metadata": lambda n: held("a cat", dict.fromkeys(different(n // 2), 1) | {"tags": list(different(n // 2))}),
    "texts": lambda n: held(" ".join(different(n)), {"b" * n: "c" * n}),
}
# The methods of an index that read it, in two groups. Those left out change it, or do nothing with what it holds.
READING: dict[str, Callable[[Any], Any]] = {
    "count": lambda _: index().count("tags contains 'a' or b is null"),
    "describe": lambda _: index().describe(),
    "documents": lambda _: deque(index().documents(), 0),
    "facets": lambda _: index().facets("tags"),
    "fields": lambda _: index().fields(),
    "get": lambda _: index().get("odd"),
    "ids": lambda _: index().ids("tags contains 'a'"),
    "search": lambda text: index().search("a cat", highlight=True, late=True, context=1, document=True),
    "source": lambda _: index().source("odd"),
    "unknown_fields": lambda _: index().unknown_fields("b = 1 and c = 2"),
}
ANALYSES: dict[str, Callable[[Any], Any]] = {
    "backup": lambda _: index().backup(FOLDER / f"backup{next(_numbers)}"),
    "duplicates": lambda _: index().duplicates(),
    "explain": lambda text: index().explain("a cat", text),
    "export": lambda _: index().export(FOLDER / f"export{next(_numbers)}"),
    "topics": lambda _: index().topics(2),
    "verify": lambda _: index().verify(),
}
OTHERS = {"add", "add_documents", "close", "compact", "create", "delete", "open", "reembed", "sync", "upsert"}
OTHERS |= {"update_metadata", "embedded_again", "embedder", "factory", "path", "warns_of_fields", "writer"}


def each(methods: dict[str, Callable[[Any], Any]], given: Any) -> None:
    for call in methods.values():
        # What refuses does not keep the others from their work.
        with suppress(*REFUSALS):
            call(given)


# What names and short values may be
NAMES = strings("a", "-", "\xad", "\ufdfa", "/", ".", end="!")
QUOTED = strings('"a', '" ', "*")
QUERIES = MEANING | strings('"a', '" ', "(", "\u201c", "*", "-a", "\u6771")
WHERE = strings("(", "not ", "a=1 and ", "a.", '"', "\\", "`", "1", " ", "'") | {
    "in a list": lambda n: f"a in ({','.join('1' * (n // 2))})",
    "or": lambda n: " or ".join(["a = 1"] * (n // 9 + 1)),
    "dates": lambda n: "a in (" + ",".join(["'2024-01-01'"] * (n // 13 + 1)) + ")",
}
GLOBS = strings("*a", "?", "[", "[a", "]", "\\", "/", "**/", "!", "a*/", end="b")
SECRETS = strings("http://a:", "b@", "&key=", "?", "#", " ", "=")
RECIPES = strings("a=1\n", "[[sources]]\n", "[", '"', "a.", "{a=")
RECIPES |= {"names": lambda n: "".join(f"{word} = 1\n" for word in different(n))}
BLOCKS = strings("\t", "\f", "\n", "|", "# ")
# A table whose field has an odd name
NAMED = FOLDER / "named.jsonl"
put(NAMED, '{"a": "a"}\n')


def rules(text: str) -> None:
    found = Rules([text])
    for path in ("a" * 1000, "a/" * 500, "]" * 1000):
        found.check(path, within=True)


def recipe(text: str) -> None:
    path = FOLDER / "recipe.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    read_recipe(path, {"steps", "sources"})


def searched(**options: Any) -> Callable[[str], Any]:
    return lambda text: (by_words.asked.cache_clear(), index().search(text, **options))


def contained(text: str) -> None:
    index().upsert(["a cat"], ["odd"], [{"f": text + text}])
    index().count(f'f contains "{text}b"')


def in_sheets(sheets: range) -> None:
    table = tables.Table("odd", tables.SPREADSHEET, {}, iter(()))
    table.sheets = [(2 * sheet, f"sheet {sheet}") for sheet in sheets]
    assert all(table.in_sheet(2 * sheet + 1) == (1, f"sheet {sheet}") for sheet in sheets)


def predicted(text: str) -> None:
    names = text.split()
    table = tables.Table("odd", tables.JSONL, {}, iter(()))
    table.names = names
    row = Row(1, dict.fromkeys(names, "a"), "a", {"label": "a", "probabilities": {"a": 1.0}})
    WRITERS_OF_PREDICTIONS[".csv"](StringIO(), iter([row]), table)


ENTRIES: dict[str, Entry] = {
    # Texts
    "characters": Entry(lambda text: (normalisation.words(text), embedder().tokens([text])), ALONE),
    "places of words": Entry(all_of(normalisation.placed_words), TEXTS),
    "indexed": Entry(normalisation.indexed, TEXTS),
    "ids": Entry(lambda text: embedder().tokens([text]), TEXTS),
    "spans": Entry(lambda text: embedder().text_tokenizer.spans(text), MEANING),
    "embed": Entry(lambda text: embedder().encode([text]), MEANING),
    "embed many": Entry(lambda text: embedder().encode(text.split()), WORDS),
    "growing text": Entry(lambda text: embedder().state().add(text), MEANING),
    "contributions": Entry(lambda text: contributions(embedder(), text), WORDS, 2048),
    "deduplicate": Entry(lambda text: grams(normalized(text)), MEANING | strings("-", "1", ".", "%"), 1 << 16),
    # Documents and rows
    **dict(formats()),
    "bytes": Entry(
        decode,
        {name: lambda n, make=make: make(n).encode("utf-8", "surrogatepass") for name, make in MEANING.items()}
        | {repr(piece): repeated(piece) for piece in (b"\0", b"\xe9 a", b"\xff", b"\r", b"\x81\x40")},
    ),
    **{f"blocks of {kind}": Entry(cut, MEANING | BLOCKS) for kind, cut in blocks.KINDS.items()},
    **{f"rows of {kind}": Entry(rows, families) for kind, families in ROWS.items()},
    "headers of mail": Entry(all_of(extract), HEADERS),
    "name of a field": Entry(lambda field: deque(read_documents(NAMED, field), 0), strings("a", ".", "a.b")),
    "labels": Entry(lambda path: as_array([label for _, label, _ in read_labelled_rows(path)]), LABELS),
    "several labels": Entry(lambda path: list(read_labelled_rows(path, several=True)), LABELS),
    "spellings of labels": Entry(lambda text: Classes(text.split()), WORDS),
    "columns": Entry(all_of(read_columns), LABELS),
    "predictions": Entry(predicted, WORDS),
    "places in sheets": Entry(in_sheets, {"sheets": range}),
    "a line of code": Entry(blocks.code, {"tabs": lambda n: "x =" + "\t" * n}, blocks._LONGEST_HEAD),
    "sentences": Entry(sentences, MEANING | strings(". ", "!", "\n", ")", "A")),
    "chunks passages:64": Entry(partial(cut, "passages:64"), MEANING | strings(". ", "\n", "a")),
    "chunks tokens:64": Entry(partial(cut, "tokens:64"), MEANING | strings(". ", "\n", "a")),
    "ignore rule": Entry(rules, GLOBS),
    "ignore rules": Entry(lambda text: Rules(text.split("\n")).check("a/b"), strings("*a\n", "/", "**/\n", "!\n")),
    # Indexes
    "metadata": Entry(lambda text: metadata_json(json.loads(text), 1), KEYS),
    "add": Entry(lambda text: index().upsert([text], ["odd"]), MEANING),
    "add many": Entry(lambda text: index("many").upsert(text.split(), text.split()), WORDS, 1 << 16),
    "update": Entry(lambda text: index().update_metadata("odd", json.loads(text)), KEYS),
    "methods of an index": Entry(partial(each, READING), HELD, 1 << 15),
    "analyses of an index": Entry(partial(each, ANALYSES), HELD, 1 << 11),
    "filter": Entry(parse_filter, WHERE),
    "filtered": Entry(lambda text: index().count(text), WHERE),
    "contains": Entry(contained, strings("a"), 1 << 18),
    "field": Entry(lambda text: index().facets(text), NAMES),
    "time": Entry(moment_of, strings("2024-01-01", "T00:00", ".1", "1")),
    "query": Entry(lambda text: (by_words.asked.cache_clear(), by_words.asked(text)), QUERIES),
    "search by words": Entry(searched(mode="words"), MEANING | QUOTED),
    "search": Entry(searched(late=True, highlight=True), MEANING),
    "many queries": Entry(lambda text: index().search(text.split()), WORDS, 1 << 15),
    "vectors": Entry(lambda given: index().search(given), {"ones": lambda n: np.ones((n, 320), np.float32)}, 1 << 16),
    "like": Entry(lambda text: index().search(like=text.split()), WORDS),
    "not": Entry(lambda text: index().search("cat", exclude=text.split()), WORDS),
    "corrections": Entry(lambda text: by_words.respelled(text, {"a": "b"}), MEANING),
    "found": Entry(
        lambda text: (hits.snippet("a cat of x1", text), hits.word_shares("a cat of x1", [text]), hits.places(text)),
        MEANING | strings("a cat", ". ", "x1", "\n"),
    ),
    "snippet of a query": Entry(lambda text: hits.snippet(text, text[:10_000]), MEANING),
    "grep": Entry(
        lambda path: grep("a cat", path, model=embedder()), files("odd.txt", WORDS | {"mixed": TEXTS["mixed"]})
    ),
    "id": Entry(checked_id, NAMES),
    # Names, options and errors
    "model": Entry(Model.of, NAMES),
    "encoding": Entry(require_encoding, NAMES),
    "chunk": Entry(checked_chunk, NAMES),
    "factory": Entry(lambda text: checked_factory(text, 384), NAMES),
    "globs": Entry(lambda text: Globs([text]), GLOBS),
    "option": Entry(lambda text: named_values(None, None, (f"a={text}",)), strings(",", "[", "1", '"')),  # type: ignore[arg-type]
    "recipe": Entry(recipe, RECIPES),
    "names in errors": Entry(lambda text: errors.unknown_name("name", text, [text, *text.split()]), NAMES | MEANING),
    "values in errors": Entry(lambda text: errors.quoted([text, {text: [text]}]), NAMES),
    "secrets in errors": Entry(errors.without_secrets, SECRETS),
    "terminal": Entry(lambda text: (printable(text), one_line(text, 80)), MEANING),
    **dict(requests(FOLDER)),
}
# Options of commands that are patterns, and the entries that time them.
PATTERN_OPTIONS = {"include": "globs", "exclude": "globs", "where": "filter"}
