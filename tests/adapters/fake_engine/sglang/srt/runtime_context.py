import types


def get_parallel():
    return types.SimpleNamespace(tp_rank=0, tp_size=1)
