"""Kernel backends: `reference` defines the format, `native` serves host memory, `triton` accelerators."""

from actnn.kernels.contract import Backend, Status
from actnn.kernels.native import Native
from actnn.kernels.reference import Reference
from actnn.kernels.table import accelerator_backend, host_backend, select, status

__all__ = ["Backend", "Native", "Reference", "Status", "accelerator_backend", "host_backend", "select", "status"]
