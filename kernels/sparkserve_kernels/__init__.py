"""Kernels as operations on plain tensors; they know neither sparkserve nor an engine.

One folder per operation::

    <op>/__init__.py    META, without heavy imports
    <op>/api.py         the public functions and ``is_supported``
    <op>/kernel.py      the kernel
    <op>/reference.py   the same function in plain torch, same signature

The folders are the registry (``sparkserve_kernels.registry``): adding an operation touches no
list, and a folder that does not import or lacks its META is an error, never silence.

There is no ``kernels/__init__.py`` above this package: SGLang depends on a package of the name
``kernels``, which that file would shadow.
"""
