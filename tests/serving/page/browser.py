"""A headless Chromium that keeps to one host, and the index that the page shows.

The documents were written for this project, on the subjects of a housing co-operative's notebook.
``python -m tests.serving.page.browser`` takes the pictures of docs/serving.md from the real page.
"""

import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import Browser, Page, expect, sync_playwright

from ctx_embed import SearchIndex
from tests.serving.server import serving

EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
OPTIONS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
# Milliseconds after which a page that does not do what it should has failed.
PATIENCE = 20_000
expect.set_options(timeout=PATIENCE)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the browser without a window, with a fresh profile; a test is skipped where none is installed."""
    if (executable := next(filter(None, map(shutil.which, EXECUTABLES)), None)) is None:
        pytest.skip("no Chromium is installed")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=executable, args=OPTIONS) as browser,
    ):
        yield browser


def opened(browser: Browser, **options: Any) -> tuple[Page, list[str]]:
    """Return a new page, and a list that fills with what goes wrong: errors, and requests that leave the machine."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE)
    wrong: list[str] = []
    page.on("console", lambda message: message.type in ("error", "warning") and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda sent: sent.url.startswith("http://127.0.0.1:") or wrong.append(f"asked for {sent.url}"))
    return page, wrong


def make_index(folder: Path | str, name: str, kind: str | None = None) -> Path:
    """Create an index of the examples, or of those of one kind, in a folder."""
    chosen = [pair for pair in zip(*documents(), strict=True) if kind in (None, pair[1]["kind"])]
    path = Path(folder, name)
    with SearchIndex.create(path) as index:
        index.add([text for text, _ in chosen], metadata=[fields for _, fields in chosen])
    return path


# Nearly the same as documents above.
TWINS = [
    ("letter", "repairs", "The kitchen tap has been dripping for weeks now and it keeps me awake at night."),
    ("note", "cooking", "Bread dough rises better in the fridge over a whole night than in two warm hours."),
    ("minutes", "neighbours", "The summer party is on the third Saturday of July; everybody brings a dish, a chair."),
]

MARKUP = (
    "<script>document.title = 'taken over'</script> <img src=x onerror=\"document.title='taken over'\"> "
    "Typing &lt;b&gt; makes letters <b>bold</b> on the notice board's web form; \u202eplease\u202c use plain text 🙂."
)


def documents() -> tuple[list[str], list[dict[str, Any]]]:
    """Return the texts and their metadata: kind, year, written, tags, urgent, and where each comes from."""
    rows = []
    # Headings are subjects; each line below has a kind and a text.
    for line in filter(None, Path(__file__).with_name("examples.txt").read_text(encoding="utf-8").splitlines()):
        if line.startswith("# "):
            subject = line[2:]
        else:
            kind, text = line.split(": ", 1)
            rows.append((kind, subject, text))
    rows += [*TWINS, ("note", "computers", MARKUP)]
    metadata = []
    for number, (kind, subject, _) in enumerate(rows):
        written = date(2019, 1, 14) + timedelta(days=53 * ((number * 7) % len(rows)))
        fields: dict[str, Any] = {"kind": kind, "year": written.year, "written": written.isoformat()}
        fields["tags"] = [subject, "winter" if written.month in (11, 12, 1, 2) else "other seasons"]
        fields["urgent"] = kind == "report" and number % 2 == 0
        if kind == "minutes":
            fields |= {"title": f"House meeting, {written:%B %Y}", "source": f"minutes/{written:%Y-%m}.pdf"}
            fields["page"] = 1 + number % 4
        elif kind == "note":
            fields |= {"source": f"notes/{subject}.md", "line": 3 + 4 * (number % 9)}
        metadata.append(fields)
    return [text for _, _, text in rows], metadata


PICTURES = [
    ("light", "the heating does not work&mode=hybrid&f.kind=report&f.kind=minutes", (1180, 860), "light", 1),
    ("dark", "too loud at night", (1180, 760), "dark", 1),
    ("phone", "water comes in", (360, 720), "light", 1.5),
]

if __name__ == "__main__":
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder, chromium() as browser, serving(make_index(folder, "house")) as server:
        for name, query, (width, height), scheme, scale in PICTURES:
            size = {"width": width, "height": height}
            page, _ = opened(browser, viewport=size, color_scheme=scheme, device_scale_factor=scale)
            page.goto(f"{server.url}/?q={query}")
            page.locator(".hit").first.wait_for()
            page.locator("fieldset.facet").nth(1).wait_for(state="attached")
            if name == "light":
                page.locator(".explain").first.click()
                page.locator(".sides").wait_for()
                page.mouse.move(0, 0)
            # The time is that of the machine.
            page.locator(".summary").evaluate("line => line.textContent = line.textContent.replace(/ in .* ms/, '')")
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(128, dither=Image.Dither.NONE)
            picture.save(Path(__file__).parents[3] / "docs" / f"search-{name}.png", optimize=True)
