"""What an evaluation writes: tables, comparisons, plots and pages."""
