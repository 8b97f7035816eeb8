"""Text processing: tokenizer, chat template, stop strings."""
