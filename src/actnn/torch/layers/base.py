"""What all compressed layers share."""

from __future__ import annotations

import torch
from torch import Tensor

from actnn.model.layers import CompressedLayer
from actnn.torch.tensors import ARRAYS


class Compressed(CompressedLayer):
    """A compressed layer of torch, whose parameters are ``weight`` and ``bias`` where it has any."""

    tensors = ARRAYS

    def records(self, x: Tensor) -> bool:
        """Tell whether autograd will want a gradient through this call, and codes are to serve it."""
        if not (torch.is_grad_enabled() and self.site.session.policy.compress) or 0 in x.shape:
            return False
        if x.requires_grad:
            return True
        return any(own is not None and own.requires_grad for own in self._parameters.values())
