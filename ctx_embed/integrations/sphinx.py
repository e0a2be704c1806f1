"""Search by meaning in a site that Sphinx builds: add ``ctx_embed.integrations.sphinx`` to ``extensions``.

The search takes the place of the theme's box, in the themes that have Sphinx's ``searchbox.html``, Alabaster's
``searchfield.html`` or Furo's ``sidebar/search.html``. Sphinx's own search page stays, and browsers without JavaScript
get a link to it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ctx_embed import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# Pages that Sphinx makes of others, which a search should not find.
EXCLUDED = ["_*", "genindex*", "search", "search.html", "*-modindex*"]


def _add_templates(app: Sphinx, config: Any) -> None:
    """Put the box in place of the theme's, unless the project has a template of its own."""
    import ctx_embed.site

    config.templates_path.append(str(Path(ctx_embed.site.__file__).with_name("sphinx")))


def _write_search(app: Sphinx, error: Exception | None) -> None:
    """Write the search of the pages that were built into the folder ``_search``."""
    if error is not None or app.builder.format != "html":
        return
    from ctx_embed.index import SearchIndex
    from ctx_embed.site import export_site

    with TemporaryDirectory() as folder, SearchIndex.create(Path(folder) / "site.index", chunk="passages") as index:
        index.sync(app.outdir, include=["*.html"], exclude=[*EXCLUDED, *app.config.ctx_search_exclude])
        export_site(index, Path(app.outdir) / "_search")


def setup(app: Sphinx) -> dict[str, Any]:
    """Let Sphinx call the functions above; ``ctx_search_exclude`` are globs of pages to leave out."""
    app.add_config_value("ctx_search_exclude", [], "html", list)
    app.connect("config-inited", _add_templates)
    app.connect("build-finished", _write_search)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
