"""`ctx-embed index`: build, query, change and describe search indexes.

Called by ``cli/main.py``; all work is done in :mod:`ctx_embed.index`.
A command changes in the file that the group below names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctx_embed.cli.main import Group

if TYPE_CHECKING:
    from ctx_embed.index.search_index import SearchIndex

# The module and the function of each command, imported at first use.
HOMES = {
    "backup": "maintain.backup",
    "build": "build.build",
    "compact": "maintain.compact",
    "count": "documents.count",
    "delete": "documents.delete",
    "duplicates": "explore.duplicates",
    "export": "documents.export",
    "facets": "documents.facets",
    "get": "documents.get",
    "info": "maintain.info",
    "merge": "maintain.merge",
    "open": "documents.open_source",
    "query": "query.query",
    "reembed": "maintain.reembed",
    "set": "documents.set_metadata",
    "similar": "query.similar",
    "sync": "sync.sync",
    "topics": "explore.topics",
    "verify": "maintain.verify",
}


def opened(path: str, **options: Any) -> SearchIndex:
    """Return the opened index; it is imported here, as it would slow down the help."""
    from ctx_embed.index.search_index import SearchIndex

    return SearchIndex.open(path, **options)


index = Group(
    "index",
    homes={name: f"index.{home}" for name, home in HOMES.items()},
    help="""Build, query and change search indexes.

    Example: ctx-embed index build notes.txt notes.index && ctx-embed index query notes.index "a question"
    """,
)
