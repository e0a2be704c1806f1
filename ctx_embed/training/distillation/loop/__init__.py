"""The training of a student: objectives, optimizer, log and metrics."""
