"""Tasks, their files and their formats.

Called by ``eval/evaluation.py``.
A task is added to ``catalogue.py``; a file format, to ``formats.py``.
"""
