"""The reports of an evaluation: tables, comparisons and plots."""
