"""Files to passages: walk a folder, read each format as text, and find the text's structure.

Called by ``index build``, ``index sync`` and ``grep``.
A new format is a reader in ``formats/``, named in its ``__init__``.

walking.py      the files of a folder: .gitignore, globs, hidden files
formats/        a reader for each format; :mod:`ctx_embed.documents.formats` chooses the reader by the file's suffix
extraction.py   read risky formats in worker processes with limits on time and memory
decoding.py     a file's bytes, and bytes as text
blocks.py       paragraphs, headings, functions, code blocks and front matter: where a text may be cut
units.py        documents from files, paragraphs, lines or records, with their ids and metadata
"""
