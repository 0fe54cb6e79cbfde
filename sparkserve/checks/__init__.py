"""Checks: judgements over facts, one small pure function each, described as data."""
