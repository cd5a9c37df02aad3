"""The kernels in plain array operations: what every other backend must agree with."""

from actnn.kernels.reference.backend import Reference

__all__ = ["Reference"]
