"""Attention of many heads as a layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from actnn.model.door import DECLINED, Frame
from actnn.torch.door.multi_head import Asked, Heads, attended
from actnn.torch.layers.base import Compressed


class QMultiheadAttention(Compressed, nn.MultiheadAttention):
    """``nn.MultiheadAttention`` whose maps and attention keep codes, each at a site of its own behind the layer's name.

    In evaluation, and where torch has to do it, the plain forward runs, its fast path and all.
    """

    plain = nn.MultiheadAttention

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention and its weights, None where these are not asked for."""
        found = DECLINED
        if self.training and any(map(self.records, (query, key, value))):
            masks, how = (attn_mask, key_padding_mask), (need_weights, average_attn_weights, self.batch_first)
            asked = Asked(*masks, is_causal, self.dropout, *how)
            frame = Frame(self.site.session, self, self.site.name, True)
            found = attended(frame, query, key, value, self.heads(), asked)
        if found is not DECLINED:
            attention: tuple[Tensor, Tensor | None] = found
            return attention
        options: dict[str, Any] = {"average_attn_weights": average_attn_weights, "is_causal": is_causal}
        return self.plain.forward(self, query, key, value, key_padding_mask, need_weights, attn_mask, **options)

    def heads(self) -> Heads:
        """Return what this layer is made of."""
        return Heads(
            self.num_heads,
            self.embed_dim,
            (self.in_proj_weight, self.in_proj_bias),
            (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight),
            (self.out_proj.weight, self.out_proj.bias),
            (self.bias_k, self.bias_v),
            self.add_zero_attn,
        )
