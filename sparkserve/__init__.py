"""sparkserve: from bare DGX Sparks to a verified OpenAI-compatible endpoint."""

__version__ = "0.1.0"
