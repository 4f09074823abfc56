"""writer: continues a line of text, byte by byte, with a small GPT-2."""
