"""The folders that an index follows: their files, changes, and the place of a passage in its file."""
