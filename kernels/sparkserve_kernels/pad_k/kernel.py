"""Padding along K needs no kernel: a weight is padded once, and rows by a copy into a buffer."""
