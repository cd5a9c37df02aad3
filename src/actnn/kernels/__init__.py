"""Kernel backends: `reference` defines the format, `native` is the compiled one for host memory."""

from actnn.kernels.contract import Backend, Status
from actnn.kernels.native import Native
from actnn.kernels.reference import Reference
from actnn.kernels.table import host_backend, select, status

__all__ = ["Backend", "Native", "Reference", "Status", "host_backend", "select", "status"]
