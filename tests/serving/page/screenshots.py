"""Take the pictures of docs/serving.md from the real page: python -m tests.serving.page.screenshots."""

import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from tests.serving.page.browser import chromium, make_index, opened
from tests.serving.server import serving

DOCS = Path(__file__).parents[3] / "docs"
COLOURS = 128


def save(page: Page, name: str) -> None:
    """Write what the page shows to docs/, in few colours and without the time, which is that of the machine."""
    page.locator(".summary").evaluate("line => { line.textContent = line.textContent.replace(/ in [\\d,]+ ms/, ''); }")
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(DOCS / name, optimize=True)
    print(f"{name}: {(DOCS / name).stat().st_size // 1000} kB")


def main() -> None:
    """Write search-light.png, search-dark.png and search-phone.png."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser, serving(make_index(folder, "house")) as server:

        def visit(address: str, width: int, height: int, scheme: str, scale: float = 1) -> Page:
            size = {"width": width, "height": height}
            page, _ = opened(browser, viewport=size, color_scheme=scheme, device_scale_factor=scale)
            page.goto(server.url + address)
            page.locator(".hit").first.wait_for()
            page.locator("fieldset.facet").nth(1).wait_for(state="attached")
            return page

        page = visit("/?q=the heating does not work&mode=hybrid&f.kind=report&f.kind=minutes", 1180, 860, "light")
        page.locator(".explain").first.click()
        page.locator(".sides").wait_for()
        page.mouse.move(0, 0)
        save(page, "search-light.png")
        page = visit("/?q=too loud at night", 1180, 760, "dark")
        save(page, "search-dark.png")
        page = visit("/?q=water comes in", 360, 720, "light", 1.5)
        save(page, "search-phone.png")


if __name__ == "__main__":
    main()
