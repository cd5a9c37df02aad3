"""Embedding: its backward needs the indices alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from actnn.model.door import OwnSite
from actnn.torch.door.embedding import embedding
from actnn.torch.layers.functional import FunctionalLayer


class QEmbedding(FunctionalLayer, nn.Embedding):
    """``nn.Embedding`` that keeps its indices in half the bytes."""

    plain = nn.Embedding

    def sent(self, call: OwnSite, input: Tensor) -> Any:
        """Return what the rule makes of the call."""
        own = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        return embedding(call, F.embedding, input, self.weight, *own)
