"""Text to token ids, without torch: the tokenizer, remembered words, and phrases.

Called by everything that reads texts.
How a text is read changes in ``normalisation.py``, which changes the fingerprint of all models.
"""
