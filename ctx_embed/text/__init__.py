"""Text to token ids, without torch: the tokenizer, remembered words, and phrases.

Called by everything that reads texts.
``normalisation.py`` decides how a text is read; changing it changes the fingerprint of all models.
"""
