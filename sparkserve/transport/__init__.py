"""Reaching nodes: the Host protocol and its two kinds, SSH and this machine."""
