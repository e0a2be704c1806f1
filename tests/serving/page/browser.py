"""A headless Chromium that keeps to one host, and the index that the page shows."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.serving.page.examples import documents

EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Milliseconds after which a page that does not do what it should has failed.
PATIENCE = 20_000


def executable() -> str | None:
    """Return the path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, EXECUTABLES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the browser without a window, with a fresh profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=OPTIONS)
        yield browser
        browser.close()


def opened(browser: Browser, **options: Any) -> tuple[Page, list[str]]:
    """Return a new page, and a list that fills with what goes wrong: errors, and requests that leave the machine."""
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE)
    wrong: list[str] = []
    page.on("console", lambda message: message.type in ("error", "warning") and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda asked: asked.url.startswith("http://127.0.0.1:") or wrong.append(f"asked for {asked.url}")
    )
    return page, wrong


def make_index(folder: Path | str, name: str, kind: str | None = None) -> Path:
    """Create an index of the examples, or of those of one kind, in a folder."""
    from ctx_embed import SearchIndex

    chosen = [pair for pair in zip(*documents(), strict=True) if kind in (None, pair[1]["kind"])]
    path = Path(folder, name)
    with SearchIndex.create(path) as index:
        index.add([text for text, _ in chosen], metadata=[fields for _, fields in chosen])
    return path
