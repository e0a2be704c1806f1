"""The command line: commands parse, call the library and print.

``python -m ctx_embed`` and the script ``ctx-embed`` call ``main.py``, which imports one command's file.
Each command is in the file of its name; options that several commands share are in ``options.py``.
"""
