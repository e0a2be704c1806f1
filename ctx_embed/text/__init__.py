"""Text to token ids, without torch: the tokenizer, remembered words, and phrases."""
