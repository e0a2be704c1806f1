"""The reports of an evaluation: tables and comparisons."""
