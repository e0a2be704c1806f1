"""Text classifiers: a linear head over a sentence encoder, without torch."""
