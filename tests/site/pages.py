"""A small static site, and a server of it that counts bytes, with the strictest policy under which the search runs."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ctx_embed import SearchIndex

ROOT = Path(__file__).parents[2]
POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; base-uri 'none'"
MARKUP = "&lt;img src=x onerror=alert(1)&gt;<code>&lt;script&gt;document.title='taken'&lt;/script&gt;</code>"
PAGES = {
    "heating.html": f"""<!doctype html><title>Heating - The House</title><main><h1 id="heating">Heating</h1>
<p>The boiler stands in the cellar and keeps all the flats warm from October to April.</p>
<section id="bleeding"><h2>Bleeding the radiators<a href="#bleeding" title="Link">\xb6</a></h2>
<p>Open the valve with the square key until water comes instead of air.</p></section>
<h2 id="caf\xe9-corner">When it stays cold</h2>
<p>Call the caretaker; the number hangs beside the door. {MARKUP}</p></main>""",
    "garden/beds.html": """<!doctype html><title>Vegetable beds - The House</title><main><h1>Vegetable beds</h1>
<p>Tomatoes and beans grow along the southern wall. Water them in the evening.</p>
<h2 id="compost">Compost</h2><p>Kitchen scraps go into the wooden box, never cooked food.</p></main>""",
    "garden/tools.html": """<!doctype html><title>Tools - The House</title><main><h1 id="t">Tools</h1>
<p>Spades, rakes and the lawn mower stand in the shed. Bring them back clean.</p></main>""",
}
HOME = """<!doctype html><html lang="en"><meta charset="utf-8"><title>The House</title>
<meta name="color-scheme" content="light dark">
<script type="module" src="/search/ctx-search.js"></script><body><header></header><main><h1>The House</h1>
<ctx-search src="/search/" parameter="q" placeholder="Search the handbook">
<a href="/all.html">All pages</a></ctx-search>
</main></body></html>"""


def make_site(folder: Path) -> Path:
    """Write the pages, and our own documentation as Markdown, and an index of them; return the index."""
    (folder / "site" / "garden").mkdir(parents=True)
    for name, page in PAGES.items():
        (folder / "site" / name).write_text(page.replace("<title>", '<meta charset="utf-8"><title>'), encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, folder / "site")
    with SearchIndex.create(folder / "site.index", chunk="passages:64", dtype="int8") as index:
        index.sync(folder / "site")
    (folder / "site" / "index.html").write_text(HOME, encoding="utf-8")
    return folder / "site.index"


class Handler(SimpleHTTPRequestHandler):
    """Serves files with the policy, and counts what it sends."""

    protocol_version = "HTTP/1.1"
    # The head and the body of an answer are written apart; the body would wait 40 ms until the head is confirmed.
    disable_nagle_algorithm = True
    sent: list[tuple[str, int]]

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()

    def send_header(self, keyword: str, value: str) -> None:
        if keyword == "Content-Length":
            self.sent.append((self.path, int(value)))
        super().send_header(keyword, value)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Serve a folder; yield its address, and the list of paths and bytes sent."""
    sent: list[tuple[str, int]] = []
    handler = partial(type("Counting", (Handler,), {"sent": sent}), directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()
