"""What search of a static site costs in a browser: bytes, times and files, and Pagefind's on the same pages.

    python benchmarks/site.py FOLDER [--exclude GLOB ...] [--pagefind] [--store NAME]
    python benchmarks/site.py DATA/retrieval/cranfield [--pagefind] [--store NAME]
    python benchmarks/site.py --table

FOLDER holds HTML, such as docs/_build/html, or /usr/share/doc/python3.11/html of Debian's package python3.11-doc. It
needs Chromium; --pagefind needs the package pagefind[bin] and runs it on the same pages. Bytes are those of
bodies of answers, uncompressed by the server, and times are from the last key to the first hit, with a server on this
machine; a query that is typed waits for a pause of 120 ms more.

A folder in BEIR's form becomes a site with one page a document. Its judged queries are asked there, and nDCG@10 is
printed: that of the site, of the library's hybrid search of the same index (late=False), and of Pagefind. --store keeps
the result in benchmarks/site.json, of which --table prints the table of docs/site.md.
"""

import argparse
import html
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import collection, ndcg
from ctx_embed import SearchIndex
from ctx_embed.site import export_site

RESULTS = Path(__file__).with_suffix(".json")
QUERIES = [
    "how do I read a file line by line",
    "remember results of a function",
    "run several tasks at once",
    "which license does it have",
    "convert a string to a number",
    "what happens when memory is not enough",
    "search by meaning",
    "install without internet",
    "compare two lists",
    "why is it slow at the start",
]
HOME = """<!doctype html><meta charset="utf-8"><title>home</title>
<script type="module" src="/_search/ctx-search.js"></script><ctx-search src="/_search/"></ctx-search>"""
PAGEFIND = """<!doctype html><meta charset="utf-8"><title>home</title><p>home</p>"""
OURS = """query => new Promise((found) => {
    const element = document.querySelector("ctx-search");
    const start = performance.now();
    element.addEventListener("ctx-found", () => found(performance.now() - start), { once: true });
    element.box.value = query;
    element.box.dispatchEvent(new Event("input"));
})"""
THEIRS = """async (query) => {
    const start = performance.now();
    const pagefind = await import("/pagefind/pagefind.js");
    const { results } = await pagefind.search(query);
    await Promise.all(results.slice(0, 10).map((result) => result.data()));
    return performance.now() - start;
}"""

# The first ten different pages that a query finds.
OUR_PAGES = """async (query) => {
    const { Search } = await import("/_search/search.js");
    window.search ??= new Search("/_search/");
    return (await window.search.search(query, 10)).hits.map((hit) => hit.page);
}"""
THEIR_PAGES = """async (query) => {
    const pagefind = await import("/pagefind/pagefind.js");
    const { results } = await pagefind.search(query);
    return (await Promise.all(results.slice(0, 10).map((result) => result.data()))).map((page) => page.url.slice(1));
}"""


def measured(folder: Path, home: str, script: str) -> dict[str, Any]:
    """Return medians over queries of bytes and milliseconds: cold, of a later query, and of one asked again."""
    from tests.serving.page import browser as browsing
    from tests.site.pages import served

    (folder / "ctx-benchmark.html").write_text(home)
    cold: list[tuple[int, float]] = []
    later: list[tuple[int, float]] = []
    again = []
    with browsing.chromium() as browser, served(folder) as (url, sent):
        for query in QUERIES[:5]:
            page, _ = browsing.opened(browser)
            page.goto(f"{url}/ctx-benchmark.html")
            time = page.evaluate(script, query)
            cold.append((sum(size for path, size in sent if "benchmark" not in path), time))
            page.close()
            sent.clear()
        page, _ = browsing.opened(browser)
        page.goto(f"{url}/ctx-benchmark.html")
        page.evaluate(script, QUERIES[0])
        for query in QUERIES[1:]:
            sent.clear()
            time = page.evaluate(script, query)
            later.append((sum(size for _, size in sent), time))
            again.append(page.evaluate(script, query))
    (folder / "ctx-benchmark.html").unlink()
    names = ("cold_bytes", "cold_ms", "later_bytes", "later_ms")
    medians = [statistics.median(values) for values in (*zip(*cold, strict=True), *zip(*later, strict=True))]
    most = {"most_cold_bytes": max(cold)[0], "most_later_bytes": max(later)[0]}
    return {**dict(zip(names, medians, strict=True)), "again_ms": statistics.median(again), **most}


def found(folder: Path, script: str, queries: dict[str, str]) -> dict[str, list[str]]:
    """Return the documents that each query finds, best first; a page is named after its document."""
    from tests.serving.page import browser as browsing
    from tests.site.pages import served

    (folder / "ctx-benchmark.html").write_text(PAGEFIND)
    with browsing.chromium() as browser, served(folder) as (url, _):
        page, _ = browsing.opened(browser)
        page.goto(f"{url}/ctx-benchmark.html")
        pages = {query: page.evaluate(script, text) for query, text in queries.items()}
    (folder / "ctx-benchmark.html").unlink()
    return {query: [name.removesuffix(".html") for name in names] for query, names in pages.items()}


def judged(folder: Path, pagefind: bool) -> dict[str, Any]:
    """Return nDCG@10 of a collection whose documents are the pages of a site, one passage each."""
    documents, queries, judgements = collection(folder.parents[1], folder.name)

    def score(hits: dict[str, list[str]]) -> float:
        return statistics.mean(ndcg(hits[query], judgements[query]) for query in queries)

    with tempfile.TemporaryDirectory() as temporary:
        site = Path(temporary) / "site"
        site.mkdir()
        for name, text in documents.items():
            page = (
                f'<!doctype html><html lang="en"><meta charset="utf-8"><main><p>{html.escape(text)}</p></main></html>'
            )
            (site / f"{name}.html").write_text(page, encoding="utf-8")
        with SearchIndex.create(Path(temporary) / "site.index") as index:
            index.sync(site)
            results = index.search([*queries.values()], 10, late=False)
            library = {
                query: [hit.metadata["source"].removesuffix(".html") for hit in hits]
                for query, hits in zip(queries, results, strict=True)
            }
            export_site(index, site / "_search")
        scores = {"library": score(library), "site": score(found(site, OUR_PAGES, queries))}
        if pagefind:
            shutil.rmtree(site / "_search")
            run_pagefind(site)
            theirs = found(site, THEIR_PAGES, queries)
            # It finds pages that have every word of a query.
            scores |= {"pagefind": score(theirs), "without_hits": sum(not hits for hits in theirs.values())}
    return {"queries": len(queries), **scores}


def run_pagefind(folder: Path) -> None:
    """Write Pagefind's files into a folder of HTML."""
    command = [sys.executable, "-m", "pagefind", "--site", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def files_of(folder: Path) -> dict[str, int]:
    """Return how many files a folder has, and their bytes."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def costs(folder: Path, exclude: list[str], pagefind: bool) -> dict[str, Any]:
    """Return what a search of the pages in a folder costs, and what Pagefind's does."""
    exclude = ["_*", "genindex*", "search.html", "*-modindex*", "pagefind", *exclude]
    with tempfile.TemporaryDirectory() as temporary:
        copied, index_path = Path(temporary) / "site", Path(temporary) / "site.index"
        with SearchIndex.create(index_path, chunk="passages") as index:
            index.sync(folder, include=["*.html"], exclude=exclude)
            for document in index.documents():
                name = document.metadata["source"]
                (copied / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / name, copied / name)
            passages = export_site(index, copied / "_search").passages
        costs: dict[str, Any] = {"passages": passages}
        costs |= {**files_of(copied / "_search"), **measured(copied, HOME, OURS)}
        if pagefind:
            shutil.rmtree(copied / "_search")
            run_pagefind(copied)
            costs["pagefind"] = {**files_of(copied / "pagefind"), **measured(copied, PAGEFIND, THEIRS)}
    return costs


def table() -> str:
    """Return the table of docs/site.md from the stored results."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    names = [name for name, result in stored.items() if "passages" in result]
    columns = [part for name in names for part in (stored[name], stored[name]["pagefind"])]
    rows = {
        "passages": [f"{column['passages']:,}" if "passages" in column else "" for column in columns],
        "bytes before the first hit": [f"{column['cold_bytes'] / 1e6:.2f} MB" for column in columns],
        "bytes of a later query": [f"{column['later_bytes'] / 1e3:.0f} kB" for column in columns],
        "first hit, nothing loaded": [f"{column['cold_ms']:.0f} ms" for column in columns],
        "first hit of a new query": [f"{column['later_ms']:.0f} ms" for column in columns],
        "of a query asked again": [f"{column['again_ms']:.0f} ms" for column in columns],
        "files": [f"{column['files']:,}, {column['bytes'] / 1e6:.1f} MB" for column in columns],
        "nDCG@10 of cranfield": [f"{stored['cranfield'][name]:.3f}" for name in ("site", "pagefind")],
    }
    head = ["", *(part for name in names for part in (name, "Pagefind"))]
    lines = [f"| {' | '.join([name, *row, *[''] * (len(columns) - len(row))])} |" for name, row in rows.items()]
    lines = [f"| {' | '.join(head)} |", f"|---|{'--:|' * len(columns)}", *lines]
    return re.sub(" +", " ", "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--exclude", nargs="*", default=[])
    parser.add_argument("--pagefind", action="store_true")
    parser.add_argument("--store", metavar="NAME")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table())
        return
    if given.folder is None or not given.folder.is_dir():
        parser.error(f"FOLDER must be a folder of HTML, got {given.folder}")
    is_judged = (given.folder / "corpus.jsonl").is_file()
    result = (
        judged(given.folder.resolve(), given.pagefind)
        if is_judged
        else costs(given.folder, given.exclude, given.pagefind)
    )
    print(json.dumps(result))
    if given.store:
        stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**stored, given.store: result}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
