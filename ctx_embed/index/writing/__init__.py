"""Changes to an index: transactions, chunking and compaction."""
