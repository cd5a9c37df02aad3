"""Rules of attention, softmax and cross entropy."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.attention import EXTRA_BITS, AttentionSites
from actnn.torch.door.maps import coded, linear
from actnn.torch.functions import cross_entropy as losses
from actnn.torch.functions import softmax as softmaxes
from actnn.torch.functions.attention import attention


def scaled_dot_product_attention(
    frame: Frame,
    function: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return the attention, which keeps codes of queries, keys and values."""
    if not (frame.training and coded(query, key, value)):
        return DECLINED
    if not any(x is not None and x.requires_grad for x in (query, key, value, attn_mask)):
        return DECLINED
    name = frame.count("scaled_dot_product_attention")
    roles = EXTRA_BITS.items()
    sites = AttentionSites(*(frame.site(name, extra=extra, part=f".{role}") for role, extra in roles))
    return attention(sites, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def multi_head_attention(
    frame: Frame,
    function: Any,
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    static_k: Any = None,
    static_v: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """Return ``F.multi_head_attention_forward`` by maps and an attention that keep codes.

    Declines what hardly anybody uses: weights to be returned, and keys or values besides those that were given.
    """
    rare = (bias_k, bias_v, static_k, static_v)
    if need_weights or add_zero_attn or any(x is not None for x in rare) or query.dim() != 3:
        return DECLINED
    if not (frame.training and coded(query, key, value)):
        return DECLINED
    length, batch, width = query.shape
    weights = (q_proj_weight, k_proj_weight, v_proj_weight)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    if use_separate_proj_weight or query is not key or key is not value:
        if not use_separate_proj_weight:
            weights = in_proj_weight.chunk(3)
        inputs = zip((query, key, value), weights, biases, strict=True)
        projected = [mapped(frame, x, weight, bias) for x, weight, bias in inputs]
    else:
        projected = list(mapped(frame, query, in_proj_weight, in_proj_bias).chunk(3, -1))
    heads = [
        x.reshape(len(x), batch * num_heads, width // num_heads).transpose(0, 1).unflatten(0, (batch, num_heads))
        for x in projected
    ]
    mask = joint_mask(attn_mask, key_padding_mask, heads[0], heads[1])
    # a hint only, where a mask is given
    causal = is_causal and attn_mask is not None and key_padding_mask is None
    given = (*heads, None if causal else mask, dropout_p if training else 0.0, causal)
    found = scaled_dot_product_attention(frame, function, *given)
    if found is DECLINED:
        found = F.scaled_dot_product_attention(*given)
    joined = found.permute(2, 0, 1, 3).reshape(length, batch, width)
    return mapped(frame, joined, out_proj_weight, out_proj_bias), None


def mapped(frame: Frame, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a linear map of a tensor, which keeps a code where the weight learns."""
    found = linear(frame, F.linear, x, weight, bias)
    return F.linear(x, weight, bias) if found is DECLINED else found


def joint_mask(mask: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return both masks as one that is added to the logits, of shape (batch, heads, queries, keys) or like it."""
    batch, heads = query.shape[:2]
    masks = []
    if mask is not None:
        mask = added(mask, query)
        masks.append(mask.unflatten(0, (batch, heads)) if mask.dim() == 3 else mask)
    if padding is not None:
        masks.append(added(padding, query).view(batch, 1, 1, key.shape[2]))
    return sum(masks[1:], masks[0]) if masks else None


def added(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask as numbers to be added to logits."""
    if mask.dtype is torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
    return mask.to(like.dtype)


def softmax(frame: Frame, function: Any, input: Any, dim: Any = None, dtype: Any = None, **options: Any) -> Any:
    """Return a softmax along an axis that is given."""
    return probabilities(frame, "softmax", softmaxes.softmax, input, dim, dtype)


def log_softmax(frame: Frame, function: Any, input: Any, dim: Any = None, dtype: Any = None, **options: Any) -> Any:
    """Return the logarithm of a softmax along an axis that is given."""
    return probabilities(frame, "log_softmax", softmaxes.log_softmax, input, dim, dtype)


def functional(rule: Rule) -> Rule:
    """Return the rule of a function of ``F``, which takes a level of the stack before the dtype."""

    def called(
        frame: Frame, function: Any, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
    ) -> Any:
        return rule(frame, function, input, dim, dtype)

    return called


def probabilities(frame: Frame, name: str, operation: Any, x: Any, axis: Any, dtype: Any) -> Any:
    """Return what an operation on logits makes of them."""
    if not isinstance(axis, int) or not frame.training or not coded(x) or not x.requires_grad:
        return DECLINED
    return operation(frame.site(frame.count(name)), x, axis, dtype)


def cross_entropy(
    frame: Frame,
    function: Any,
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return the cross entropy, which keeps a code of the probabilities."""
    old = size_average is not None or reduce is not None
    if old or not frame.training or not coded(input) or not input.requires_grad or target.requires_grad:
        return DECLINED
    site = frame.site(frame.count("cross_entropy"))
    return losses.cross_entropy(site, input, target, weight, ignore_index, reduction, label_smoothing)


RULES: dict[Any, Rule] = {
    F.scaled_dot_product_attention: scaled_dot_product_attention,
    F.multi_head_attention_forward: multi_head_attention,
    F.softmax: functional(softmax),
    torch.softmax: softmax,
    Tensor.softmax: softmax,
    F.log_softmax: functional(log_softmax),
    torch.log_softmax: log_softmax,
    Tensor.log_softmax: log_softmax,
    F.cross_entropy: cross_entropy,
}
