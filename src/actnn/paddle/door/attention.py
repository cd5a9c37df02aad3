"""Rules of attention, softmax and cross entropy."""

from __future__ import annotations

from typing import Any

import paddle

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.attention import EXTRA_BITS, AttentionSites
from actnn.paddle.door.forms import coded, learns
from actnn.paddle.functions import cross_entropy as losses
from actnn.paddle.functions import softmax as softmaxes
from actnn.paddle.functions.attention import Options, attention


def scaled_dot_product_attention(
    frame: Frame,
    function: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    training: bool = True,
    backend: Any = None,
    scale: float | None = None,
    enable_gqa: bool = True,
    name: Any = None,
) -> Any:
    """Return the attention, which keeps codes of queries, keys and values."""
    if backend is not None or not (frame.training and training and coded(query, key, value)) or len(query.shape) != 4:
        return DECLINED
    if not learns(query, key, value, attn_mask):
        return DECLINED
    call = frame.count("scaled_dot_product_attention")
    roles = EXTRA_BITS.items()
    sites = AttentionSites(*(frame.site(call, extra=extra, part=f".{role}") for role, extra in roles))
    return attention(sites, query, key, value, attn_mask, Options(dropout_p, is_causal, scale, enable_gqa))


def softmax(frame: Frame, function: Any, x: Any, axis: int = -1, dtype: Any = None, name: Any = None) -> Any:
    """Return a softmax along an axis."""
    return probabilities(frame, "softmax", softmaxes.softmax, x, axis, dtype)


def log_softmax(frame: Frame, function: Any, x: Any, axis: int = -1, dtype: Any = None, name: Any = None) -> Any:
    """Return the logarithm of a softmax along an axis."""
    return probabilities(frame, "log_softmax", softmaxes.log_softmax, x, axis, dtype)


def probabilities(frame: Frame, name: str, operation: Any, x: Any, axis: Any, dtype: Any) -> Any:
    """Return what an operation on logits makes of them."""
    if not isinstance(axis, int) or not (frame.training and coded(x) and learns(x)) or not x.shape:
        return DECLINED
    return operation(frame.site(frame.count(name)), x, axis, dtype)


def cross_entropy(
    frame: Frame,
    function: Any,
    input: Any,
    label: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    soft_label: bool = False,
    axis: int = -1,
    use_softmax: bool = True,
    label_smoothing: float = 0.0,
    name: Any = None,
) -> Any:
    """Return the cross entropy of logits, which keeps a code of the probabilities; declines weights of classes."""
    fits = isinstance(label, paddle.Tensor) and reduction in ("mean", "sum", "none") and len(label.shape) > 0
    if weight is not None or not (use_softmax and fits and frame.training and coded(input) and learns(input)):
        return DECLINED
    if learns(label) or len(input.shape) - len(label.shape) not in (0, 1) or len(label) != len(input):
        return DECLINED
    site = frame.site(frame.count("cross_entropy"))
    return losses.cross_entropy(
        site, input, label, losses.Options(ignore_index, soft_label, axis, label_smoothing), reduction
    )


RULES: dict[str, Rule] = {
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "cross_entropy": cross_entropy,
}
