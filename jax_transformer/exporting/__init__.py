"""Models for other programs that serve them, a file for each: CTranslate2 and transformers."""
