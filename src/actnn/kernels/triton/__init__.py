"""The kernels in Triton's language, for tensors of an accelerator; imports Triton, so load it only for one."""

from actnn.kernels.triton.backend import Triton
from actnn.kernels.triton.target import found_target

__all__ = ["Triton", "found_target"]
