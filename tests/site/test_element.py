"""<ctx-search> in Chromium, on a site with a strict policy."""

import os
import re
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the extra server is not installed")

from ctx_embed import SearchIndex
from ctx_embed.site import export_site
from tests.serving.page import browser as browsing
from tests.serving.page.browser import Page, expect
from tests.site.pages import served


@pytest.fixture(scope="module")
def site(exported) -> Iterator[tuple[str, list]]:
    with served(exported.parent) as running:
        yield running


@pytest.fixture(scope="module")
def shared():
    with browsing.chromium() as browser:
        yield browsing.opened(browser, reduced_motion="reduce")


@pytest.fixture
def page(shared, site) -> Iterator[Page]:
    """The home page; nothing may go wrong in it."""
    page, wrong = shared
    wrong.clear()
    page.goto(site[0])
    yield page
    assert wrong == []


def test_hits_are_grouped_by_page_marked_and_lead_to_headings(page, site):
    page.get_by_role("searchbox", name="Search").fill("bleed a radiator")
    hit = page.locator("ctx-search .found a").first
    expect(hit).to_have_attribute("href", f"{site[0]}/heating.html#bleeding")
    expect(hit.locator(".heading")).to_have_text("Bleeding the radiators")
    assert "radiators" in hit.locator("mark").all_text_contents()
    expect(page.locator("ctx-search section").first.locator("h2")).to_have_text("Heating - The House")
    expect(page.get_by_role("status")).to_have_text(re.compile(r"^10 passages on \d+ pages$"))
    titles = page.locator("ctx-search h2").all_text_contents()
    assert len(titles) == len(set(titles)) > 1
    hit.click()
    page.wait_for_url("**/heating.html#bleeding")
    page.wait_for_load_state()


def test_the_keyboard_alone_is_enough_and_enter_opens_no_hit_of_the_query_before(page, site):
    page.keyboard.press("Tab")
    page.keyboard.type("compost")
    found = page.locator("ctx-search .found a")
    expect(found.first).to_be_visible()
    held, freed = [], []
    page.route("**/pieces/**", lambda route: route.continue_() if freed else held.append(route))
    page.get_by_role("searchbox").fill("where is the lawn mower kept in winter")
    page.wait_for_timeout(300)
    assert held
    page.keyboard.press("Enter")
    page.wait_for_timeout(100)
    assert page.url == f"{site[0]}/"
    freed.append(True)
    for route in held:
        route.continue_()
    expect(page.locator("ctx-search .found h2").first).to_have_text("Tools - The House")
    page.unroute_all()
    page.get_by_role("searchbox").fill("compost")
    expect(found.first.locator(".heading")).to_have_text("Compost")
    page.keyboard.press("ArrowDown")
    expect(found.first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(found.nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("ctx-search .found")).to_be_hidden()
    page.keyboard.press("ArrowDown")
    expect(page.locator("ctx-search .found a:focus")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/garden/beds.html#compost")
    page.wait_for_load_state()


def test_texts_are_never_markup_and_what_nothing_answers_is_said(page):
    page.get_by_role("searchbox").fill("call the caretaker when it stays cold")
    snippet = page.locator("ctx-search .snippet", has_text="<img src=x onerror=alert(1)>").first
    expect(snippet).to_contain_text("<script>document.title='taken'</script>")
    assert page.title() == "The House"
    assert page.locator("ctx-search img, ctx-search script").count() == 0
    page.get_by_role("searchbox").fill("who won the chess world championship in 1972")
    expect(page.get_by_role("status")).to_have_text("Nothing here seems to answer this. The nearest passages:")
    page.get_by_role("searchbox").fill("\u6771\u4eac\u90fd")
    expect(page.get_by_role("status")).to_have_text("Nothing found.")
    page.get_by_role("searchbox").fill("")
    expect(page.locator("ctx-search .found")).to_be_hidden()


def test_an_address_may_hold_the_query_and_a_box_that_moves_keeps_it(page, site):
    page.goto(f"{site[0]}/?q=caf%C3%A9+t%C3%B6m\u00e4toes")
    expect(page.locator("ctx-search .found")).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_value("caf\u00e9 t\u00f6m\u00e4toes")
    beds = page.locator("ctx-search section", has_text="Tomatoes")
    expect(beds.locator("h2")).to_have_text("Vegetable beds - The House")
    page.get_by_role("searchbox").fill("radiators")
    page.evaluate("document.querySelector('header').append(document.querySelector('ctx-search'))")
    expect(page.get_by_role("searchbox")).to_have_value("radiators")
    expect(page.locator("ctx-search mark", has_text="radiators").first).to_be_visible()
    page.evaluate("location.hash = 'x'")
    expect(page.locator("ctx-search .found")).to_be_hidden()


def test_a_later_query_reads_little(page, site):
    box, sent = page.get_by_role("searchbox"), site[1]
    box.fill("where is the lawn mower")
    first = page.locator("ctx-search .found section").first
    expect(first.locator("h2")).to_have_text("Tools - The House")
    # The page's title is its heading, too.
    expect(first.locator(".snippet")).to_contain_text("Spades, rakes")
    expect(first.locator(".heading")).to_have_count(0)
    del sent[:]
    box.fill("where are the spades")
    expect(page.locator("ctx-search mark", has_text="Spades")).to_be_visible()
    assert sum(size for _, size in sent) < 200_000


def test_finished_words_are_got_ready_while_the_next_is_typed(shared, site):
    page, wrong = browsing.opened(shared[0].context.browser)
    page.clock.install(time=0)
    page.goto(site[0])
    page.get_by_role("searchbox").click()
    page.wait_for_load_state("networkidle")
    # However slow the machine is, no time passes between two keys.
    page.clock.pause_at(3600)
    del site[1][:]
    page.keyboard.type("spade")
    page.wait_for_load_state("networkidle")
    assert site[1] == []
    with page.expect_response("**/pieces/**"):
        page.keyboard.type(" ")
    page.clock.run_for(1000)
    expect(page.locator("ctx-search mark").first).to_be_visible()
    page.close()
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_or_faint_wherever_the_box_is(page, scheme):
    search, box = page.locator("ctx-search"), page.get_by_role("searchbox")
    page.emulate_media(color_scheme=scheme)
    places = ((700, "float: right; width: 12rem"), (700, "width: 12rem"), (700, "direction: rtl; width: 12rem"))
    for width, style in ((1280, ""), (360, ""), *places):
        page.set_viewport_size({"width": width, "height": 800})
        search.evaluate("(element, style) => { element.style = style; }", style)
        box.fill("heating the house" + " " * len(style))
        expect(page.locator("ctx-search .found a").first).to_be_visible()
        found = page.locator("ctx-search .found").bounding_box()
        assert found["x"] >= 0, style
        assert found["x"] + found["width"] <= width, style
        assert page.evaluate("document.documentElement.scrollWidth") <= width, style
        box.fill("")
    box.fill("heating the house")
    expect(page.locator("ctx-search .found a").first).to_be_visible()
    colours = page.evaluate("""() => {
        const root = document.querySelector("ctx-search").shadowRoot;
        const of = (part, name) => getComputedStyle(root.querySelector(part))[name];
        return [of(".found", "backgroundColor"), of(".snippet", "color"), of(".heading", "color"), of("h2", "color")];
    }""")
    back, *texts = [[int(part) for part in re.findall(r"\d+", colour)[:3]] for colour in colours]
    assert (sum(back) < 200) == (scheme == "dark")
    assert all(contrast(text, back) >= 4.5 for text in texts)
    page.emulate_media(color_scheme="light")


def luminance(colour: list[int]) -> float:
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[int], other: list[int]) -> float:
    """WCAG's contrast of two colours."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_a_missing_or_damaged_piece_is_said_and_tried_again(exported, shared, tmp_path):
    copied = shutil.copytree(exported.parent, tmp_path / "site")
    manifest = copied / "search" / "manifest.json"
    kept = manifest.read_bytes()
    with served(copied) as (url, _):
        page, wrong = browsing.opened(shared[0].context.browser)
        for number, damage in enumerate((None, b"<html>", kept.replace(b'"format": 1', b'"format": 2'))):
            manifest.unlink()
            if damage is not None:
                manifest.write_bytes(damage)
                os.utime(manifest, (number * 100 - 50, number * 100 - 50))
            page.goto(url)
            page.get_by_role("searchbox").fill("compost")
            expect(page.get_by_role("status")).to_contain_text("The search could not be loaded.")
            manifest.write_bytes(kept)
            # Python's server tells files of one second apart by nothing.
            os.utime(manifest, (number * 100, number * 100))
            page.get_by_role("button", name="Try again").click()
            expect(page.locator("ctx-search .found a").first).to_be_visible()
        # A page that is older than the site finds its new files: another build has pieces of which it knows none.
        shutil.rmtree(copied / "search")
        with SearchIndex.create(tmp_path / "new.index", chunk="passages", dtype="int8") as index:
            index.add(["The ferry to the island leaves at noon."], metadata=[{"source": "ferry.html"}])
            export_site(index, copied / "search")
        page.get_by_role("searchbox").fill("when does the ferry leave")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator("ctx-search .found a")).to_have_attribute("href", f"{url}/ferry.html")
        # Every piece in turn may be damaged in the middle of the work.
        for path in sorted((copied / "search" / "pieces").rglob("*.bin")):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        page.get_by_role("searchbox").fill("a wheelbarrow in the rain")
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
        assert wrong
        assert all("PieceError" in line or "404" in line for line in wrong), wrong
