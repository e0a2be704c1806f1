"""Files to documents: find the files that people name, read each format, and find the structure of a text.

Called by every command that reads texts. ``formats.py`` says for each suffix what reads it; ``tables.py`` reads rows,
``blocks.py`` says where a text may be cut, and ``workers.py`` reads risky formats in processes of their own.
"""
