"""Engram tables on disk: who owns which rows, and how a rank's rows are packed into files.

The room knows neither engine nor tensor library: rows are bytes here.
"""
