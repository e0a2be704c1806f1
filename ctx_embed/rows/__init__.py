"""Rows of text, CSV, TSV, JSONL and Parquet: plain or gzip, local or remote, in a stream.

Called by every command that reads texts. A new format of tables goes into ``table.py``; a new address, into
``opening.py``.
"""
