"""Tasks, their files and their formats.

Called by ``eval/evaluation.py``.
A task is added to ``tasks.json``; a file format, to ``catalogue.py``.
"""
