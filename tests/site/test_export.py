"""The files of an index for browsers, and that a search there ranks as the library does."""

import json
import sqlite3
import zlib
from importlib.resources import files
from pathlib import Path

from ctx_embed import SearchIndex
from ctx_embed.index.hits import Hit
from ctx_embed.site import export_site
from ctx_embed.site.site import anchors
from tests.helpers.cli import Command
from tests.site.pages import PAGES
from tests.site.texts import HOSTILE

QUERIES = [
    *("how do I bleed a radiator", "radiators", "where are the tools kept", "the", "to be or not to be"),
    *("Running embeddings", "vector database", "C++ and C# or .NET", "\u6771\u4eac\u90fd", "caf\u00e9", "boilers!!"),
    *HOSTILE[:8],
]


def numbers(hit: Hit) -> list:
    return [hit.text, hit.score, hit.fused, hit.relevance]


def contents(folder: Path) -> dict[str, bytes]:
    """The pieces of a site by name."""
    return {path.parent.name + path.stem: zlib.decompress(path.read_bytes()) for path in folder.rglob("*.bin")}


def test_a_search_ranks_as_the_library_does(index_path, exported, node):
    questions = (files("ctx_embed.index") / "unanswered.txt").read_text(encoding="utf-8").splitlines()
    asked = []
    with SearchIndex.open(index_path) as index:
        titles = [document.metadata.get("title", "") for document in index.documents()]
        for query in dict.fromkeys([*QUERIES, *titles, *questions[::4]]):
            # The page looks once.
            hits = index.search(query, k=20, late=False)
            # A site corrects no words, and reads no phrases.
            if '"' in query or any(hit.corrected for hit in hits):
                continue
            asked.append([query, [[hit.metadata["source"], *numbers(hit)] for hit in hits]])
    assert len(asked) > 60
    (exported / "queries.json").write_text(json.dumps(asked))
    node("search.test.js", exported)


def test_stems_are_those_of_sqlite(embedder, tmp_path, node):
    entries = [word for word in embedder.tokenizer.get_vocab() if word.isascii() and word.isalnum()]
    endings = ("s", "ed", "ing", "ational", "iveness", "ously", "ies", "eed", "sion", "ement", "y", "ll", "alize")
    words = [*entries, *(word + ending for word in entries[::40] for ending in endings), "x" * 70 + "ing"]
    tokens = []
    with sqlite3.connect(":memory:") as store:
        for number, kind in enumerate(("unicode61 remove_diacritics 2", "porter unicode61 remove_diacritics 2")):
            store.execute(f"CREATE VIRTUAL TABLE t{number} USING fts5(text, tokenize='{kind}')")
            store.execute(f"CREATE VIRTUAL TABLE v{number} USING fts5vocab(t{number}, instance)")
            store.execute(f"INSERT INTO t{number} VALUES (?)", (" ".join(words),))
            tokens.append([term for (term,) in store.execute(f'SELECT term FROM v{number} ORDER BY "offset"')])
    (tmp_path / "stems.json").write_text(json.dumps(tokens))
    node("porter.test.js", tmp_path)


def test_headings_lead_to_their_ids():
    assert anchors(PAGES["heating.html"]) == {
        "Heating": [("Heating", "heating")],
        "Bleedingtheradiators": [("Bleeding the radiators", "bleeding")],
        "Whenitstayscold": [("When it stays cold", "caf\xe9-corner")],
    }
    for page, expected in {
        "<h2 class='a' id=x>A <em>b</em> &amp; c</h2>": ("A b & c", "x"),
        # As Sphinx, DocBook, Doxygen, MkDocs and people write them.
        "<section id=a><span id=b></span><h2>C#<a href='#a'>#</a></h2>": ("C#", "a"),
        "<h1 class=t><a id=a></a>T</h1>": ("T", "a"),
        "<a id=a name=a></a>\n<h2><span><a href='#a'>&#9670;&nbsp;</a></span>a_b()</h2>": ("a_b()", "a"),
        "<h2 id=a>T<a class=headerlink href='#a'>\uf0c1</a></h2>": ("T", "a"),
        "<p>x</p><a name=a></a><h3>T <a href=y>x y</a></h3>": ("T x y", "a"),
        "<div id=a><div><h2>T</h2>": ("T", "a"),
        "<div id=a>x<h2>T</h2>": ("T", ""),
        "<a id=a>x</a><h2>T</h2>": ("T", ""),
    }.items():
        assert list(anchors(page).values()) == [[expected]], page
    assert anchors("<h2>A</h2><h3 id='y'>A</h3>") == {"A": [("A", ""), ("A", "y")]}


def test_the_same_index_gives_the_same_files(index_path, exported):
    before = contents(exported)
    with SearchIndex.open(index_path) as index:
        again = export_site(index, exported)
    assert contents(exported) == before
    every = [path.stat().st_size for path in exported.rglob("*") if path.is_file()]
    assert (again.files, again.bytes, again.passages > 100) == (len(every), sum(every), True)


def test_a_page_less_leaves_most_pieces_as_they_were(tmp_path, tiny_model_path):
    with SearchIndex.create(tmp_path / "index", tiny_model_path, backend="numpy") as index:
        ids = index.add([f"the cat of page {n}" for n in range(200)], metadata=[{"url": f"/{n}"} for n in range(200)])
        export_site(index, tmp_path / "site")
        before = contents(tmp_path / "site").keys()
        index.delete([ids[0]])
        export_site(index, tmp_path / "site")
    assert len(before & contents(tmp_path / "site").keys()) > 0.8 * len(before)


def test_what_cannot_be_exported_is_one_line(tmp_path, index_path):
    with SearchIndex.create(tmp_path / "plain.index") as index:
        index.add(["a text without an address"])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    export = Command("export site")
    plain = tmp_path / "plain.index", "-o", tmp_path / "out"
    assert "neither of the fields 'source' and 'url'" in export.fails(*plain)
    assert not (tmp_path / "out").exists()
    assert "holds other things" in export.fails(index_path, "-o", tmp_path / "taken", "--overwrite")
    assert (tmp_path / "taken" / "thesis.txt").read_text() == "mine"


def test_an_index_of_addresses_and_of_nothing_can_be_exported(tmp_path, tiny_model_path, node):
    with SearchIndex.create(tmp_path / "a.index", tiny_model_path, dtype="int8", backend="numpy") as index:
        export_site(index, tmp_path / "empty")
        index.add(
            ["the cat in the garden", "!!!"], metadata=[{"url": "https://a.example/x?y=1"}, {"source": "b c.txt"}]
        )
        export_site(index, tmp_path / "some")
        hits = index.search("garden", k=20, late=False)
        found = [[hit.metadata.get("url", "b%20c.txt"), *numbers(hit)] for hit in hits]
    for folder, expected in (("empty", []), ("some", found)):
        (tmp_path / folder / "queries.json").write_text(json.dumps([["garden", expected]]))
        node("search.test.js", tmp_path / folder)
