"""Analysis of an index: verification, near-duplicates, topics and export."""
