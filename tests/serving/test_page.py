"""The search page in a browser, against a real server on the shipped model."""

import json
import re
from collections.abc import Iterator
from decimal import ROUND_FLOOR, Decimal
from itertools import product
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("fastapi", reason="the extra server is not installed")

from ctx_embed import SearchIndex
from tests.serving.page import browser as browsing
from tests.serving.page.browser import MARKUP, documents, expect
from tests.serving.server import serving

ROOF = "water comes through the roof"
# Names of fields that JavaScript's objects have.
PROTOTYPE = ["__proto__", "constructor", "toString", "hasOwnProperty"]
MANUAL = """# Heating

Bleed the radiators in **October**, when the boiler has been [serviced](boiler).

========

## Leaks

A puddle under the boiler means a leak: close the `main tap` and call.

## Noise

The boiler hums at night. Turn the pump down.
"""

CODE = """# Read the sensors of the __boiler__.
class Boiler:
    def pressure(self):
        # The pressure of the boiler is the lowest of its valves.
        return min(
            *self.limits,
            *(valve.pressure()
              for valve in self.valves),
        )
"""
TABLE = """# Prices

The boiler costs more each year:

| Year | Part | Price |
|:---|---|---:|
| 2021 | boiler \\| pump | 120 |
| 2022 | **boiler** valve | 130 |

```python
def price(boiler):
    if boiler.is_old:
        return 130
```
"""
HOSTILE = """<title>Notice</title><p>The boiler room is closed.</p><script>document.title = "taken over"</script>
<img src=x onerror="document.title = 'taken over'"><svg onload="document.title = 'taken over'"></svg>
<meta http-equiv="refresh" content="0;url=/healthz"><iframe src="/v1/indexes"></iframe>
"""
# The files of the index ``shelf``.
SHELF = {
    "notes/prices.md": TABLE,
    "notes/old/boiler.md": "The old boiler was sold.",
    "notes 2/boiler.MD": "The second boiler is new.",
    "2024/01/31/boiler.txt": "The boiler was cleaned.",
    "web/page.html": HOSTILE,
    "src/boiler.c": "/* the boiler */ int boiler;",
    "src/boiler.csv.py": "boiler = 'a boiler of csv'",
    "boiler": "A boiler without a suffix.",
    'q"uote\\s/boiler.txt': "A boiler in an odd folder.",
    "rows.jsonl": '{"text": "The boiler is in the cellar."}\n{"text": "The key of the boiler is lost."}\n',
    "rows.csv": "id,text\n" + "".join(f"{row},Reading {row} of the boiler is normal.\n" for row in range(1, 9)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of the indexes ``house``, ``letters``, ``manual``, ``code``, ``odd`` and ``shelf``."""
    path = tmp_path_factory.mktemp("page")
    browsing.make_index(path, "house")
    browsing.make_index(path, "letters", kind="letter")
    with SearchIndex.create(path / "manual", chunk="passages:24") as index:
        index.add([MANUAL], ids=["m"], metadata=[{"title": "Heating", "source": "manual.md", "line": 1}])
        index.add(["The cat sleeps."], ids=["cat"])
    with SearchIndex.create(path / "code") as index:
        long = CODE + "\n\ndef unlike():\n    pass\n" * 20
        index.add([CODE, long], metadata=[{"source": "b.py"}, {"source": "long.py"}])
    with SearchIndex.create(path / "odd") as index:
        metadata = [json.loads(json.dumps(dict.fromkeys(PROTOTYPE, kind))) for kind in "abb"]
        index.add(["one cat", "two cats", "a third cat"], metadata=metadata)
    for name, text in SHELF.items():
        (path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "files" / name).write_text(text)
    with SearchIndex.create(path / "shelf") as index:
        index.sync(path / "files")
    return path


@pytest.fixture(scope="module")
def url(folder) -> Iterator[str]:
    with serving(*(folder / name for name in ("house", "letters", "manual", "code", "odd", "shelf"))) as server:
        yield server.url


@pytest.fixture(scope="module")
def house(folder) -> Iterator[SearchIndex]:
    with SearchIndex.open(folder / "house") as index:
        yield index


@pytest.fixture(scope="module")
def shared():
    """One page for all tests, since starting another costs a second; and what went wrong in it."""
    with browsing.chromium() as browser:
        yield browsing.opened(browser, reduced_motion="reduce")


@pytest.fixture
def visit(shared, url):
    """Go to an address of the server. Nothing may go wrong in the page but what the test forgives."""
    page, wrong = shared
    wrong.clear()
    forgiven: list[str] = []

    def go(address="/", width=1280, scheme="light", at=url, forgiving=()):
        forgiven.extend(forgiving)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(at + address)
        return page

    yield go
    page.unroute_all(behavior="ignoreErrors")
    page.evaluate("localStorage.clear(), sessionStorage.clear()")
    page.goto("about:blank")
    assert [line for line in wrong if not any(words in line for words in forgiven)] == []


def texts(page) -> list[str]:
    return page.locator(".hit .text").all_inner_texts()


def hits(page, count=None):
    """Return the hits once they have come."""
    page.locator(".hit").first.wait_for()
    expect(page.locator("main")).not_to_have_attribute("aria-busy", "true")
    if count is not None:
        expect(page.locator(".hit")).to_have_count(count)
    return page.locator(".hit")


def asked(page) -> dict[str, list[str]]:
    """Return what stands in the address, without the index."""
    return {name: values for name, values in parse_qs(urlsplit(page.url).query).items() if name != "index"}


# Searching


def test_results_appear_while_typing_and_are_those_of_the_index(visit, house):
    page = visit()
    expect(page.locator("h1")).to_have_text("Search house")
    page.get_by_role("searchbox", name="Search").press_sequentially(ROOF)
    found = house.search(ROOF, k=10, mode="hybrid")
    hits(page, 10)
    expect(page.locator(".hit .score .number")).to_have_text([str(rank) for rank in range(1, 11)])
    # A share is rounded down.
    shares = [Decimal(hit.relevance).quantize(Decimal("0.01"), ROUND_FLOOR) for hit in found]
    shown = [(f"meaning {hit.score:.2f}", f"relevance {share}") for hit, share in zip(found, shares, strict=True)]
    expect(page.locator(".hit .score .hint")).to_have_text([text for pair in shown for text in pair])
    assert texts(page)[0] == found[0].text
    summary = re.compile(r"^The 10 best matches\. Searched 45 documents in [\d,]+ ms\.$")
    expect(page.locator(".summary")).to_have_text(summary)
    assert asked(page) == {"q": [ROOF]}
    assert page.title() == f"{ROOF} · house"
    # The address alone brings the same page back, and the browser's way back leads to the start.
    page.reload()
    hits(page, 10)
    page.get_by_role("button", name="Show more").click()
    hits(page, 20)
    page.go_back()
    expect(page.locator("h1")).to_have_text("Search house")


def test_what_is_typed_or_chosen_while_the_page_starts_counts_and_a_late_answer_does_not(visit):
    def typed(page):
        page.fill("#query", ROOF)
        # Longer than the pause after which typed text is searched.
        page.wait_for_timeout(300)
        assert page.locator(".hit").count() == 0

    def chosen(page):
        page.get_by_role("link", name="Topics").first.click()

    held = []
    for act, shown, address in ((typed, ".hit", {"q": [ROOF]}), (chosen, ".topic", {"view": ["topics"]})):
        page = visit()
        expect(page.locator("h1")).to_be_visible()
        page.route("**/v1/indexes", lambda route: held.append(route))
        with page.expect_request("**/v1/indexes"):
            page.reload()
        act(page)
        held.pop().continue_()
        page.locator(shown).first.wait_for()
        assert asked(page) == address
        page.unroute("**/v1/indexes")
    page, late = visit(), []
    page.route("**/search", lambda route: late.append(route) if not late else route.continue_())
    with page.expect_request("**/search"):
        page.fill("#query", "cat")
    with page.expect_request("**/search"):
        page.fill("#query", "a dog barks all night")
    hits(page)
    assert texts(page)[0].startswith("A dog has been barking")
    assert late[0].request.failure == "net::ERR_ABORTED"


def test_words_are_found_and_marked_and_corrected_unknown_and_unanswered_ones_told(visit):
    page = visit("/?q=roof+water&mode=dense")
    hits(page, 10)
    meaning = texts(page)
    page.get_by_role("radio", name="Words").check()
    page.wait_for_url("**mode=words*")
    expect(page.locator(".hit .text").filter(has_not_text=re.compile("roof|water", re.I))).to_have_count(0)
    assert texts(page) != meaning
    assert {mark.lower() for mark in page.locator(".hit mark").all_inner_texts()} == {"water", "roof"}
    page.get_by_role("radio", name="Both").check()
    hits(page, 10)
    assert asked(page) == {"q": ["roof water"]}
    for query, searched, typed in (
        ("guttre", "gutter", "“guttre”"),
        ("%22repair+gutter%22", "repair gutter", '"repair gutter"'),
    ):
        page = visit(f"/?q={query}&mode=words")
        expect(page.get_by_role("radio", name="Words")).to_be_checked()
        said = f"Searched for “{searched}” instead of {typed}: no document has it."
        expect(page.get_by_role("note")).to_have_text(said)
        assert "gutter" in texts(page)[0].lower()
    page = visit("/?q=日本語")
    expect(page.locator("main")).to_contain_text("The model knows no word of a query")
    page = visit("/?q=the+atomic+weight+of+helium")
    hits(page, 10)
    expect(page.locator(".summary")).to_contain_text("Nothing here answers this. The nearest 10 passages")
    assert page.locator(".best").count() == 0


def test_code_and_tables_keep_their_form_and_passages_cut_anywhere_their_words(visit):
    page = visit("/?index=code&q=pressure+of+the+boiler+valves")
    hits(page, 2)
    assert CODE.strip() in texts(page)
    # Part of a long file has whole lines.
    (cut,) = set(texts(page)) - {CODE.strip()}
    assert set(cut.splitlines()) <= {*CODE.splitlines(), "def unlike():", "    pass", "", "…"}
    page.locator(".open").click()
    assert any(text.startswith(CODE.strip()) and text.count("\n    pass") == 20 for text in texts(page))
    page = visit("/?index=shelf&q=what+does+the+boiler+valve+cost&folder=notes/")
    hit = hits(page).filter(has_text="Prices")
    rows = hit.locator("tr").evaluate_all("rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText))")
    expected = [["Year", "Part", "Price"], ["2021", "boiler | pump", "120"], ["2022", "boiler valve", "130"]]
    assert (rows, hit.locator("th").count()) == (expected, 3)
    assert hit.locator("pre").inner_text() == "def price(boiler):\n    if boiler.is_old:\n        return 130"
    assert not re.search(r"\*\*|```|\|-|:-", hit.inner_text())
    assert "boiler" in hit.locator("td mark").all_inner_texts()
    # Rows of JSONL are texts.
    assert hits(visit("/?index=shelf&q=the+boiler+in+the+cellar")).filter(has_text="cellar").locator("pre").count() == 0
    script = """async (texts) => {
        const { laidOut, shownParts } = await import("/static/blocks.js");
        return texts.map((text) => {
            const box = document.createElement("div");
            const laid = laidOut(text, {});
            box.append(...shownParts(laid, [0, laid.text.length], [], null));
            const nodes = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
            let words = "";
            while (nodes.nextNode()) words += ` ${nodes.currentNode.data}`;
            return words;
        });
    }"""
    # The language of code is not shown.
    whole = TABLE.replace("python", "")
    cut = [whole[start:stop] for start in range(0, len(whole), 7) for stop in range(start + 1, len(whole) + 1, 11)]
    for text, shown in zip(cut, visit().evaluate(script, cut), strict=True):
        assert re.findall(r"\w+", shown) == re.findall(r"\w+", text), text


def test_a_long_text_is_cut_around_its_best_sentence_and_its_place_stands_above_it(visit):
    page = visit("/?q=who+pays+for+the+repair&mode=dense")
    # Even without a common word.
    hit = hits(page).filter(has_text="The bill will come by post")
    assert hit.locator(".best").inner_text().startswith("The bill will come by post")
    assert "boiler switched itself off" not in hit.inner_text()
    page = visit("/?q=watch+the+gauge&mode=words")
    hit = hits(page).filter(has_text="gauge")
    assert "watch the gauge" in hit.locator(".best").inner_text()
    assert "bill will come by post" not in hit.inner_text()
    hit.get_by_role("button", name="Show all").click()
    assert "bill will come by post" in hit.inner_text()
    expect(hit.get_by_role("button", name="Show less")).to_have_attribute("aria-expanded", "true")
    page = visit("/?q=the+roofer+offers+to+replace+the+tiles")
    first = hits(page).first
    expect(first.locator("h3")).to_have_text(re.compile("House meeting"))
    expect(first.locator(".place")).to_have_text(re.compile(r"minutes/\d{4}-\d\d\.pdf, page \d"))
    page.fill("#query", "roast the pumpkin with ginger")
    expect(first.locator("h3")).to_have_text("notes/cooking.md")
    expect(first.locator(".place")).to_have_text(re.compile(r"line \d+"))


def test_more_like_this_leaves_the_text_out_and_an_explanation_colours_its_words(visit, house):
    page = visit("/?q=dripping+tap")
    hits(page).first.get_by_role("button", name="More like this").click()
    page.wait_for_url("**like=*")
    identifier = json.loads(asked(page)["like"][0])
    expect(page.locator(".liked")).to_contain_text(f"Like document {identifier}")
    expected = [hit.text for hit in house.search(house.get(identifier).text, k=11) if hit.id != identifier][:10]
    hits(page, 10)
    assert (texts(page)[0], len(expected)) == (expected[0], 10)
    page.get_by_role("button", name="Back to searching").click()
    expect(page.locator(".liked")).to_have_count(0)
    expect(page.locator("#query")).to_be_focused()
    page = visit("/?q=the+radiator+is+cold")
    first = hits(page).first
    first.get_by_role("button", name="Explain").click()
    first.locator(".sides").wait_for()
    query, text = first.locator(".sides > div").all()
    assert query.locator(".words").inner_text() == "the radiator is cold"
    assert text.locator(".words").inner_text() == first.locator(".text").inner_text()
    # The word of the deepest colour.
    of = "(word) => parseInt(word.style.getPropertyValue('--share'))"
    deepest = f"words => words.sort((a, b) => ({of})(b) - ({of})(a))[0].textContent"
    for side in (query, text):
        assert "radiator" in side.locator(".for").evaluate_all(deepest).lower()
    first.get_by_role("button", name="Explain").click()
    expect(first.locator(".explanation")).to_be_hidden()


def test_passages_of_a_document_stand_together_with_neighbours_on_demand(visit):
    page = visit("/?index=manual&q=boiler+leak")
    manual = hits(page, 2).first
    expect(manual.locator(".further").nth(1)).to_be_visible()
    expect(manual.locator(".place", has_text="line 9, Leaks")).to_be_visible()
    # The title is a heading, too, which stands above.
    expect(manual.locator(".place", has_text=re.compile("line 1$"))).to_be_visible()
    shown = manual.inner_text()
    assert not re.search(r"\*\*|==|##|`|\]\(", shown), shown
    assert "close the main tap" in shown
    manual.get_by_role("button", name="Show all").first.click()
    whole = "Bleed the radiators in October, when the boiler has been serviced."
    expect(manual.locator(".text").first).to_contain_text(whole)
    page = visit("/?index=shelf&q=%22Reading+4%22&mode=words")
    hit = hits(page).first
    hit.get_by_role("button", name="Neighbours").click()
    numbers = [f"Reading {row} of the boiler is normal." for row in (2, 3, 4, 5, 6)]
    expect(hit.locator(".text p")).to_have_text(numbers)
    expect(hit.locator(".around p")).to_have_text(numbers[:2] + numbers[3:])
    hit.get_by_role("button", name="Without neighbours").click()
    expect(hit.locator(".text p")).to_have_text(numbers[2:3])
    # Around a passage stands the text of its document; the key N does the same.
    page = visit("/?index=manual&q=the+boiler+hums+at+night")
    hit = hits(page).filter(has_text="hums").first
    hit.focus()
    page.keyboard.press("n")
    expect(hit.locator(".around").first).to_contain_text("Bleed the radiators in October")


def test_a_hit_opens_its_file_and_a_hostile_page_is_harmless(visit):
    page = visit("/?index=shelf&q=the+boiler+room+is+closed", forgiving=["Blocked script", "Content Security Policy"])
    link = hits(page).filter(has_text="room is closed").locator("h3 a")
    with page.context.expect_page() as opened:
        link.click()
    new = opened.value
    new.wait_for_load_state()
    new.wait_for_timeout(300)
    assert (new.title(), new.evaluate("self.origin"), new.evaluate("window.opener")) == ("Notice", "null", None)
    assert "The boiler room is closed." in new.inner_text("body")
    assert "/file?source=web%2Fpage.html" in new.url
    new.close()
    # Documents of other indexes come from no folder.
    page = visit("/?q=the+roofer+offers+to+replace+the+tiles")
    assert hits(page).locator("h3 a").count() == 0


# Filters


def test_folders_types_and_sources_filter(visit):
    page = visit("/?index=shelf&q=boiler")
    hits(page)
    panel = page.get_by_role("complementary", name="Filters")

    def shown(chosen):
        """Wait until the hits come from the files that the function chooses, and from no others."""
        script = """(expected) => {
            const links = [...document.querySelectorAll(".hit h3 a")].map(({ href }) => new URL(href));
            const found = new Set(links.map(({ searchParams }) => searchParams.get("source")));
            return JSON.stringify([...found].sort()) === JSON.stringify(expected);
        }"""
        page.wait_for_function(script, arg=sorted(name for name in SHELF if chosen(name)))

    for name in ("folder", "type"):
        panel.get_by_role("button", name=f"more values of {name}").click()
    folders = {name[: place + 1] for name in SHELF for place, sign in enumerate(name) if sign == "/"}
    for name in folders - {"2024/", "2024/01/"}:
        box = panel.locator(f"[value={json.dumps(name)}]")
        box.check()
        shown(lambda source, name=name: source.startswith(name))
        box.uncheck()
    for suffix in (".md", ".txt", ".c", ".py", ".html", ""):
        box = panel.locator(f"fieldset:has-text('Type') [value={json.dumps(suffix)}]")
        box.check()
        shown(lambda source, suffix=suffix: source.lower().endswith(suffix) if suffix else "." not in source)
        box.uncheck()
    # Several folders widen, a type narrows, a part of a name narrows again; the address has all of it.
    for value in ("notes/", "notes 2/", ".md"):
        panel.locator(f"[value={json.dumps(value)}]").check()
    panel.get_by_label("Source", exact=True).fill("boiler")
    panel.get_by_label("Source", exact=True).press("Enter")
    for _ in range(2):
        shown({"notes/old/boiler.md", "notes 2/boiler.MD"}.__contains__)
        page.reload()
    panel.get_by_role("button", name="Clear all").click()
    assert hits(page, 10)
    assert asked(page) == {"q": ["boiler"]}


def test_checkboxes_ranges_expressions_and_fields_of_any_name_filter(visit, house):
    page = visit("/?q=repair")
    hits(page)
    panel = page.get_by_role("complementary", name="Filters")
    panel.get_by_role("checkbox", name="letter").check()
    page.wait_for_url("**f.kind=letter*")
    panel.get_by_role("checkbox", name="report").check()
    # The next click or key counts, although leaving a field searches again.
    panel.get_by_label("year, from").focus()
    page.keyboard.type("2021")
    page.keyboard.press("Tab")
    expect(panel.get_by_label("year, to")).to_be_focused()
    panel.get_by_label("written, to").fill("2024-02-12")
    panel.get_by_role("checkbox", name="winter").check()
    panel.get_by_text("expression", exact=True).click()
    panel.get_by_label("Filter expression").fill("urgent = false")
    panel.get_by_label("Filter expression").press("Enter")
    where = (
        'kind in ("letter", "report") and year >= 2021 and written < "2024-02-13" and tags contains "winter" '
        "and urgent = false"
    )
    expected = house.search("repair", k=10, where=where)
    assert any(hit.metadata["written"] == "2024-02-12" for hit in expected)
    page.wait_for_url("**where=*")
    # The address alone shows the same; then everything is cleared.
    for _ in range(2):
        hits(page, len(expected))
        assert [text[:40] for text in texts(page)] == [hit.text[:40] for hit in expected]
        page.reload()
    expect(page.get_by_role("checkbox", name="letter")).to_be_checked()
    expect(page.get_by_label("year, from")).to_have_value("2021")
    page.get_by_role("button", name="Clear all").click()
    hits(page, 10)
    assert asked(page) == {"q": ["repair"]}
    for place in range(len(PROTOTYPE)):
        page = visit("/?index=odd&q=cat")
        hits(page, 3)
        box = page.locator("fieldset.facet").nth(place).get_by_role("checkbox", name=re.compile("^b"))
        box.check()
        hits(page, 2)
        page.reload()
        expect(box).to_be_checked()
        hits(page, 2)
        box.uncheck()
        hits(page, 3)


def test_the_counts_of_values_are_those_of_the_index_and_a_lowest_relevance_filters(visit):
    page = visit()
    kinds = page.locator("fieldset", has_text="kind").first
    counts = [fields["kind"] for fields in documents()[1]]
    for kind in set(counts):
        expect(kinds.locator("label", has_text=kind)).to_contain_text(str(counts.count(kind)))
    kinds.get_by_role("checkbox", name="minutes").check()
    said = f"{counts.count('minutes')} documents of {len(counts)} meet the filters"
    expect(page.locator(".welcome")).to_contain_text(said)
    # Places within a source are no filters.
    assert not page.locator("fieldset legend").filter(has_text=re.compile("^(page|line)$")).count()
    page = visit("/?q=Who+was+the+first+king+of+Denmark&relevance=0.9&f.nothing=1")
    expect(page.locator(".notice h2")).to_have_text("Nothing found")
    expect(page.locator("#status")).to_have_text("No results")
    expect(page.get_by_label("lowest relevance")).to_have_value("0.9")
    page.get_by_role("button", name="Clear the filters").click()
    hits(page, 10)
    shown = [float(text.split()[-1]) for text in page.locator(".hit .score .hint").all_inner_texts() if "rel" in text]
    assert len(shown) == 10
    assert max(shown) < 0.9


def test_filters_are_written_as_the_index_reads_them_and_types_and_folders_are_those_of_the_names(visit, tmp_path):
    names = ["plain", "two words", "and", "Null", "grün", "9th", "a.b", "dash-ed"]
    values = ['say "hi"', "back\\slash", "it's", "new\nline", "🙂", ""]
    page = visit()
    with SearchIndex.create(tmp_path / "odd") as index:
        index.add(values, metadata=[dict.fromkeys(names, value) for value in values])
        script = """async ([name, value]) => {
            const { whereOf } = await import("/static/where.js");
            return whereOf({ [name]: [value] }, [{ name, type: "string" }]);
        }"""
        for name, value in [(name, values[0]) for name in names] + [("plain", value) for value in values]:
            where = page.evaluate(script, [name, value])
            assert index.ids(where) == [values.index(value)], where
        assert page.evaluate(script, ['na"me', "x"]) is None
    script = """async ([sources, type]) => {
        const { fileConditions, typeOf, whereOf } = await import("/static/where.js");
        const chosen = { folder: [], type: [type], source: "" };
        return [whereOf({}, [], "", fileConditions(chosen, sources)), sources.filter((each) => typeOf(each) === type)];
    }"""
    many = [f"{'long/' * 8}module_{number}.h" for number in range(1500)]
    for sources in (["a.h", "b.H", "c.html", "d.h.txt", "e", ".h"], [*many, "b.H", "c.html", "d.h.txt", "e", ".html"]):
        with SearchIndex.create(tmp_path / str(len(sources))) as index:
            index.add(["x"] * len(sources), sources, metadata=[{"source": each} for each in sources])
            for kind in (".h", ".html", ".txt", ""):
                where, expected = page.evaluate(script, [sources, kind])
                assert sorted(index.ids(where)) == sorted(expected), where[:100]
    script = """async (sources) => {
        const { filesOf } = await import("/static/facets.js");
        return filesOf(sources.map((value) => ({ value, documents: 1 })))?.folder.values.map(({ value }) => value);
    }"""
    site = "https://a.example/b/"
    for sources, folders in (
        ([f"{site}c.html", f"{site}d.html", "http://b.example/"], [site, "http://b.example/"]),
        (["a/b/c/d.md", "a/b/c/e.md"], ["a/b/c/"]),
        (["a/b.md", "a/c/d.md", "/x/y.md"], ["a/", "/x/", "a/c/"]),
        (["a.md"], []),
        (["Reuters", "AP"], None),
    ):
        assert page.evaluate(script, sources) == folders, sources


# Topics, several indexes


def test_topics_lead_to_searches_and_indexes_are_chosen(visit):
    page, held = visit(), []
    page.route("**/topics", lambda route: held.append(route))
    page.get_by_role("link", name="Topics").first.click()
    expect(page.locator(".lead")).to_contain_text("Grouping 45 documents …")
    held[-1].continue_()
    page.unroute("**/topics")
    page.locator(".topic").first.wait_for()
    assert page.locator(".topic").count() == 5
    page.get_by_label("How many").select_option("10")
    expect(page.locator(".topic").nth(7)).to_be_visible()
    assert sum(int(text.split()[0]) for text in page.locator(".topic .size").all_inner_texts()) == len(documents()[0])
    page.locator(".topic h3 button").first.click()
    hits(page, 10)
    assert len(asked(page)["q"][0].split()) == 5
    page = visit("/?q=cat&f.kind=note")
    hits(page)
    page.get_by_label("Index").select_option("letters")
    page.wait_for_url("**index=letters*")
    hits(page, 10)
    assert asked(page) == {"q": ["cat"]}
    expect(page.locator(".summary")).to_contain_text("Searched 11 documents")


# Keyboard, colours, widths, screen readers


def test_everything_is_reached_from_the_keyboard(visit):
    page = visit()
    expect(page.locator("h1")).to_be_visible()

    def typed(words):
        page.keyboard.press("/")
        with page.expect_response(lambda answer: f'"{words}"' in (answer.request.post_data or "")):
            page.keyboard.type(words)
        expect(found.first.locator(".text")).to_contain_text(words.split()[0])
        page.keyboard.press("ArrowDown")

    found = page.locator(".hit")
    typed("garlic bed")
    expect(found.nth(0)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(found.nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("e")
    expect(found.nth(0).locator(".explanation")).to_be_visible()
    page.keyboard.press("Enter")
    expect(found.nth(0).locator(".explanation")).to_be_hidden()
    page.keyboard.press("m")
    page.locator(".liked").wait_for()
    page.keyboard.press("Escape")
    expect(page.locator(".liked")).to_have_count(0)
    typed("radiator")
    page.keyboard.press("Escape")
    expect(page.locator("#query")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#query")).to_have_value("")
    # Whatever has the focus shows it.
    for _ in range(12):
        page.keyboard.press("Tab")
        shown = page.evaluate(
            "(e => { const s = getComputedStyle(e.matches('[type=radio]') ? e.nextElementSibling : e);"
            " return s.outlineStyle !== 'none' || s.boxShadow !== 'none'; })(document.activeElement)"
        )
        assert shown, page.evaluate("document.activeElement.outerHTML")


def test_dark_follows_the_system_until_it_is_chosen(visit):
    background = "getComputedStyle(document.body).backgroundColor"
    light = visit().evaluate(background)
    page = visit(scheme="dark")
    assert page.evaluate(background) != light
    toggle = page.get_by_role("button", name="Dark colours")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    toggle.click()
    assert page.evaluate(background) == light
    page.reload()
    assert page.evaluate(background) == light


VIEWS = ["/", "/?q=the+boiler+is+broken&mode=hybrid", "/?index=shelf&q=what+does+the+boiler+cost"]
VIEWS += ["/?view=topics", "/?q=script&mode=words&where=year+>="]


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_is_readable_named_and_fits(visit, view):
    page, checks = visit(view, forgiving=["status of 400"]), Path(browsing.__file__).with_name("checks.js").read_text()
    page.locator("#suggestions li, .hit, .topic, .notice").first.wait_for()
    if "shelf" in view:
        page.locator(".near").first.click()
        page.locator(".around").first.wait_for()
    if "broken" in view:
        page.locator(".explain").first.click()
        page.locator(".sides").wait_for()
    for width, scheme in product((1280, 360), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 740})
        page.emulate_media(color_scheme=scheme)
        if width == 360 and page.locator("#filters").is_hidden() and page.locator("#filters-toggle").is_visible():
            page.locator("#filters-toggle").click()
        assert page.evaluate(checks) == [], (width, scheme)


# Safety and failures


def test_markup_stays_text_and_the_page_is_allowed_nothing_but_its_own_files(visit, url):
    page = visit("/?q=<img+src=x+onerror=alert(1)>+<script>document.title&mode=hybrid")
    hit = hits(page).filter(has_text="taken over")
    assert hit.locator(".text").inner_text() == MARKUP
    hit.get_by_role("button", name="Explain").click()
    page.locator(".sides").wait_for()
    assert page.locator("img, main script, .text b").count() == 0
    assert "taken over" not in page.title().replace("document.title", "")
    policy = page.request.get(url).headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "data:" not in policy
    assert "require-trusted-types-for 'script'" in policy
    # A newer version of a file replaces the one that the browser has.
    script = page.request.get(f"{url}/static/main.js").headers
    assert (script["cache-control"], script["x-content-type-options"]) == ("no-cache", "nosniff")
    for path in Path(browsing.__file__).parents[3].joinpath("ctx_embed/serving/page").iterdir():
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), path
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}, path


def test_failures_are_told_and_can_be_tried_again(visit):
    page = visit("/?q=cat", forgiving=["ERR_FAILED", "status of"])
    hits(page)
    page.route("**/search", lambda route: route.abort())
    page.fill("#query", "dog")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
    page.unroute("**/search")
    page.get_by_role("button", name="Try again").click()
    hits(page)
    page.route("**/search", lambda route: route.fulfill(status=429, headers={"Retry-After": "1"}, body="{}"), times=1)
    page.fill("#query", "a dog barks")
    expect(page.locator("#message")).to_contain_text("The server is busy. Trying again in 1 second.")
    expect(page.locator(".hit .text").first).to_contain_text("A dog has been barking")
    page.route("**/explain", lambda route: route.fulfill(status=501, json={"error": {"message": "it needs torch"}}))
    page.locator(".explain").first.click()
    expect(page.get_by_role("alert")).to_have_text("No explanation: it needs torch")


def test_a_server_with_keys_asks_for_one_and_keeps_it_for_the_tab(visit, folder, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("read looking\nwrite changing\n")
    with serving(folder / "letters", "--api-key-file", keys) as server:
        page = visit("/?q=cat", at=server.url, forgiving=["status of 401"])
        page.locator("#api-key").fill("wrong")
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("alert")).to_have_text("This key was not accepted.")
        for key in ("looking", "changing"):
            page.locator("#api-key").fill(key)
            page.get_by_role("button", name="Continue").click()
            hits(page, 10)
            page.reload()
            hits(page, 10)
            page.get_by_role("button", name="API key").click()
        assert page.evaluate("Object.values(localStorage).join() + document.cookie") == ""
