"""Rules of attention, softmax and cross entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.attention import EXTRA_BITS, AttentionSites
from actnn.torch.door.maps import coded
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
    F.softmax: functional(softmax),
    torch.softmax: softmax,
    Tensor.softmax: softmax,
    F.log_softmax: functional(log_softmax),
    torch.log_softmax: log_softmax,
    Tensor.log_softmax: log_softmax,
    F.cross_entropy: cross_entropy,
}
