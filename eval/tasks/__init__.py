"""Tasks, their files and their formats."""
