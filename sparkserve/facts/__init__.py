"""Facts: what a node says about itself, read by shell and judged nowhere in this room."""
