"""`ctx-embed index`: build, query, change and describe search indexes.

Called by ``cli/main.py``; all work is done in :mod:`ctx_embed.index`.
The group below names the file of each command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctx_embed.cli.main import Group

if TYPE_CHECKING:
    from ctx_embed.index.search_index import SearchIndex

# The commands of each module, imported at first use.
COMMANDS = {
    "build": "build",
    "documents": "count delete export facets get set",
    "explore": "duplicates topics",
    "maintain": "backup compact info merge reembed verify",
    "query": "query similar",
    "sync": "sync",
}


def opened(path: str, **options: Any) -> SearchIndex:
    """Return the opened index; it is imported here, as it would slow down the help."""
    from ctx_embed.index.search_index import SearchIndex

    return SearchIndex.open(path, **options)


index = Group(
    "index",
    homes={name: f"index.{module}" for module, names in COMMANDS.items() for name in names.split()},
    help="""Build, query and change search indexes.

    Example: ctx-embed index build notes.txt notes.index && ctx-embed index query notes.index "a question"
    """,
)
