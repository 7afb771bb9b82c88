"""The models: Hugging Face enters here."""
