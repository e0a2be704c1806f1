"""`ctx-embed eval`: measure encoders on tasks.

Called by ``cli/main.py``; all work is done in ``eval/``.
A command changes in the file of its name.
"""

from __future__ import annotations

from ctx_embed.cli.eval.compare import compare
from ctx_embed.cli.eval.run import run
from ctx_embed.cli.groups import Group

eval = Group(
    "eval",
    commands=[run, compare],
    help="""Evaluate encoders on probe, similarity and retrieval tasks.

    Example: ctx-embed eval run --encoder default --task MR
    """,
)
eval.removed = {"report": "eval run -o DIR writes results.md, which any viewer of Markdown shows"}
