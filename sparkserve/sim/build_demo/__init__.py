"""Build the demo models: a Llama checkpoint, its Engram tables, and the tables' packed rows.

``python -m sparkserve.sim.build_demo ROOT`` takes the real weights of SmolLM2-135M-Instruct;
``--tiny`` makes a random model of a few hundred kilobytes that needs no download.
"""
