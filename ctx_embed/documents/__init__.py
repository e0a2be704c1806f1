"""Files to passages: walk a folder, read each format as text, and find the text's structure.

Called by ``index build``, ``index sync`` and ``grep``. A new format is a reader in ``formats/``, named in its
``__init__``. ``blocks.py`` says where a text may be cut, and ``extraction.py`` reads risky formats in worker processes.
"""
