"""`ctx-embed index`: build, query, change and describe search indexes."""

from __future__ import annotations

import click

from ctx_embed.cli.groups import Group
from ctx_embed.cli.index.build import build
from ctx_embed.cli.index.documents import count, delete, export, facets, get, open_source, set_metadata
from ctx_embed.cli.index.explore import duplicates, topics
from ctx_embed.cli.index.maintain import compact, info, reembed, tune, verify
from ctx_embed.cli.index.merge import merge
from ctx_embed.cli.index.query import query, similar
from ctx_embed.cli.index.sync import sync


class IndexGroup(Group):
    """The commands of `ctx-embed index`, with the names that other programs use as aliases."""

    aliases = {
        "search": ["query"],
        "find": ["query"],
        "like": ["similar"],
        "create": ["build"],
        "add": ["build", "--append"],
        "update": ["build", "--upsert"],
        "list": ["get"],
        "show": ["get"],
        "remove": ["delete"],
        "stats": ["info"],
        "describe": ["info"],
        "dedupe": ["duplicates"],
        "clusters": ["topics"],
        "check": ["verify"],
    }


@click.group(
    cls=IndexGroup,
    epilog="Other names: search and find for query, add for build --append, update for build --upsert, list and show "
    "for get, remove for delete, stats for info.",
)
def index() -> None:
    """Build, query and change search indexes.

    Example: ctx-embed index build notes.txt notes.index && ctx-embed index query notes.index "a question"
    """


for command in (
    build,
    sync,
    query,
    similar,
    get,
    count,
    facets,
    set_metadata,
    open_source,
    delete,
    export,
    info,
    merge,
    tune,
    verify,
    reembed,
    compact,
    duplicates,
    topics,
):
    index.add_command(command)
