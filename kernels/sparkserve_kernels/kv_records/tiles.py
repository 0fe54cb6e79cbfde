"""Launch shape: one token per program."""

WARPS = 1
"""A token is 512 values, 16 a lane."""
