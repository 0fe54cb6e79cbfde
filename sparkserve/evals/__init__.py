"""Evaluations: how samples are counted and when two results differ; knows no server."""
