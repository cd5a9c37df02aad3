"""Linear layers whose weight several processes share out (tensor parallelism): each keeps a code of its part.

Letters: a weight is (out, in). Split along ``out``, every process has the whole input and a part of the output; split
along ``in``, it has a part of the input and a summand of the output. The parallel styles of torch, ColwiseParallel and
RowwiseParallel, are these two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from actnn.errors import UnsupportedError

# the linear map of an input, a weight and perhaps a bias, which keeps a code
Map = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def distributed_linear(linear: Map, x: Any, weight: Any, bias: Any, name: str) -> Any:
    """Return a linear map of distributed tensors, of which each process computes its part."""
    mesh = x.device_mesh
    split = weight.placements[0] if isinstance(weight, DTensor) and mesh.ndim == 1 else None
    if split == Shard(0):
        # each process adds its part to the gradient of the input
        whole = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        y = linear(whole, weight.to_local(), None if bias is None else bias.to_local())
        return DTensor.from_local(y, mesh, [Shard(y.dim() - 1)], run_check=False)
    if split == Shard(1):
        part = x.redistribute(placements=[Shard(x.dim() - 1)]).to_local()
        summand = DTensor.from_local(linear(part, weight.to_local(), None), mesh, [Partial()], run_check=False)
        y = summand.redistribute(placements=[Replicate()])
        return y if bias is None else y + bias
    placed = weight.placements if isinstance(weight, DTensor) else "not distributed"
    raise UnsupportedError(
        f"the weight of {name!r} is {placed} over a mesh of {mesh.ndim} axes, and its input a distributed tensor: "
        "expected ColwiseParallel or RowwiseParallel over one axis. Leave this layer exact with "
        f"QModule(model, exact=[{name!r}])."
    )
