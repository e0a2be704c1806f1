"""What is evaluated: tasks, their files and their formats."""
