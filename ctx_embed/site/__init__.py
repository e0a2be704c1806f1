"""Search of static sites, in the browser and without a server: the files that ``js/src`` reads.

Called by ``ctx-embed export site`` and :mod:`ctx_embed.integrations.sphinx`. ``site.py`` writes the pieces of an index,
``model.py`` those of its model, and ``tables.py`` those of Unicode. A change of the format goes into these and into
``js/src``.
"""

from ctx_embed.site.site import Exported, export_site

__all__ = ["Exported", "export_site"]
