"""The command line: commands parse, call the library and print.

``python -m ctx_embed`` and the script ``ctx-embed`` call ``main.py``, which imports one command's file.
A command changes in the file of its name; options of several commands are in ``options.py``.
"""
