"""Rows of text, CSV, TSV, JSONL and Parquet: plain or gzip, local or remote, in a stream.

Called by every command that reads texts.
A new format of tables goes into ``table.py``; a new address, into ``opening.py``.

opening.py    what inputs name (paths, folders, URIs, standard input), as streams of bytes
encodings.py  bytes as lines of text
table.py      the rows of a file in any format: :func:`~ctx_embed.rows.table.open_rows`
reading.py    documents and labelled texts
writing.py    embeddings as files
"""
