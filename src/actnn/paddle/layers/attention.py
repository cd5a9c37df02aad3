"""Attention of many heads as a layer."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from actnn.paddle.door.calls import within
from actnn.paddle.layers.base import Compressed
from actnn.paddle.tensors import FLOATING


class QMultiHeadAttention(Compressed, nn.MultiHeadAttention):
    """``nn.MultiHeadAttention`` by one attention, which keeps codes of queries, keys and values, and no matrix.

    Where weights or a cache are asked for, Paddle's own forward runs, and what it calls keeps codes.
    """

    plain = nn.MultiHeadAttention

    def forward(
        self, query: Tensor, key: Any = None, value: Any = None, attn_mask: Any = None, cache: Any = None
    ) -> Any:
        """Return the attention, with weights and cache where these are asked for."""
        if not self.training or not self.records(query):
            return self.plainly(query, key, value, attn_mask, cache)
        with within(self.site.session, self, self.site.name):
            if cache is not None or self.need_weights:
                return self.plainly(query, key, value, attn_mask, cache)
            return self.attended(query, query if key is None else key, query if value is None else value, attn_mask)

    def records(self, x: Tensor) -> bool:
        """Tell whether autograd may want a gradient through this call, and codes are to serve it."""
        if not paddle.in_dynamic_mode():
            self.check_static()
            return False
        return bool(paddle.is_grad_enabled()) and self.compresses() and 0 not in x.shape

    def attended(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any) -> Tensor:
        """Return the attention by one function."""
        projections = zip((self.q_proj, self.k_proj, self.v_proj), (query, key, value), strict=True)
        query, key, value = (
            project(x).reshape([*x.shape[:2], self.num_heads, self.head_dim]) for project, x in projections
        )
        if attn_mask is not None and attn_mask.dtype not in FLOATING:
            # as Paddle does it: what must not be seen is far below all logits, not infinitely far
            attn_mask = (attn_mask.astype(query.dtype) - 1.0) * 1e9
        elif attn_mask is not None:
            attn_mask = attn_mask.astype(query.dtype)
        y = F.scaled_dot_product_attention(query, key, value, attn_mask, self.dropout, training=self.training)
        found: Tensor = self.out_proj(y.reshape([*y.shape[:2], self.embed_dim]))
        return found
