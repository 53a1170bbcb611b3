"""Shares a model on the Hugging Face Hub: its card, and the upload."""
