"""The nouns: frozen pydantic models without I/O, shared by both planes."""
