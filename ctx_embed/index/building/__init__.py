"""Building an index from files, with resume."""
