"""Candidate blocks have no kernel of their own.

A block counts by the largest of its 8 scores: ``index_topk``'s selection kernel takes that maximum
while it reads the scores (GROUP = 8), so that the source layer's scores are written once and read
once for its top keys and once for its blocks.
"""

from sparkserve_kernels.index_topk.kernel import select_kernel

__all__ = ["select_kernel"]
