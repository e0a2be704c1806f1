"""The attention and the words in C: one file, compiled when the package is built."""
