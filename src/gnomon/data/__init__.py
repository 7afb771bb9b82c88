"""Texts, tokenizers and packing: everything between a file on disk and a batch of token ids."""
