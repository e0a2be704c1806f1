"""The texts of a distillation: read, mixed, and checked for what must not be trained on.

Called by ``job.py`` of the distillation.
A new kind of source starts in ``mixture.py``.
"""
