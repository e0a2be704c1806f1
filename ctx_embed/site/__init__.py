"""Search of static sites, in the browser and without a server: the files that ``js/src`` reads.

Called by ``ctx-embed export site`` and :mod:`ctx_embed.integrations.sphinx`. ``model.py`` writes the pieces of the
model and ``tables.py`` those of Unicode. A change of the format goes into these and into ``js/src``.
"""
