"""Rows of text, CSV, TSV, JSONL and Parquet: plain or gzip, local or remote, whole or in pieces, in a stream.

Called by every command that reads texts.
A new format of tables goes into ``table.py``; a new address, into ``opening.py``.

opening.py    paths, standard input and URIs as streams of bytes
encodings.py  the encoding of text
lines.py      the lines of a stream
table.py      the rows of a file in any format: :func:`~ctx_embed.rows.table.open_rows`
reading.py    documents and labelled texts
sources.py    the files that inputs name
pieces.py     files cut into pieces
writing.py    embeddings as files
"""
