"""The reports of an evaluation: tables, comparisons, plots and pages."""
