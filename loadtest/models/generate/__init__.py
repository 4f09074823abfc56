"""generate: continues a line of text, character by character, with a small GRU."""
