"""Adapters: named changes to the engine, each in its own folder, installed by one plugin.

``meta`` and ``registry`` are for both planes and know neither engine nor tensor library.
``guard``, ``install``, ``reports`` and ``plugin`` run inside the engine's processes, as does
each adapter's ``install`` module.
"""
