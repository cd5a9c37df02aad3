"""Whole classes that are one operation, though their forward is written out in small pieces.

A row is a class, or the ending of the names of such classes, and a function that computes the same in training. A class
that is found by its name is served only where a trial shows that it computes what its name says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from actnn.kernels.contract import Rows
from actnn.model.door import DECLINED
from actnn.paddle.door import norms
from actnn.paddle.door.calls import calls
from actnn.paddle.tensors import FLOATING

# given the layer, its own forward, and what it was called with
Written = Callable[..., Any]
EPSILONS = ("variance_epsilon", "epsilon", "eps", "_epsilon")
TOLERANCE = 1e-5
TRIAL_ROWS = 3


def multi_head_attention(
    layer: nn.MultiHeadAttention,
    plainly: Any,
    query: Any,
    key: Any = None,
    value: Any = None,
    attn_mask: Any = None,
    cache: Any = None,
) -> Any:
    """Return what ``nn.MultiHeadAttention`` computes, by one attention instead of a matrix of weights."""
    if cache is not None or layer.need_weights:
        return plainly(query, key, value, attn_mask, cache)
    key, value = (query if x is None else x for x in (key, value))
    projections = zip((layer.q_proj, layer.k_proj, layer.v_proj), (query, key, value), strict=True)
    query, key, value = (
        project(x).reshape([*x.shape[:2], layer.num_heads, layer.head_dim]) for project, x in projections
    )
    if attn_mask is not None and attn_mask.dtype not in FLOATING:
        # as Paddle does it: what must not be seen is far below all logits, not infinitely far
        attn_mask = (attn_mask.astype(query.dtype) - 1.0) * 1e9
    elif attn_mask is not None:
        attn_mask = attn_mask.astype(query.dtype)
    y = F.scaled_dot_product_attention(query, key, value, attn_mask, layer.dropout, training=layer.training)
    return layer.out_proj(y.reshape([*y.shape[:2], layer.embed_dim]))


def rms_norm(layer: Any, plainly: Any, *arguments: Any, **options: Any) -> Any:
    """Return an RMSNorm over the last axis."""
    (x,) = (*arguments, *options.values()) if len(arguments) + len(options) == 1 else (None,)
    width = layer.weight.shape[0]
    if isinstance(x, Tensor) and x.shape[-1] == width and x.dtype == layer.weight.dtype:
        # while rules work, the door is closed
        frame = calls.frames[-1]
        with calls.closed(calls.frames):
            rows = Rows(width, width, 1)
            y = norms.normalized(
                frame, "rms_norm", x, layer.weight, None, rows, epsilon_of(layer), lambda few: few, False
            )
        if y is not DECLINED:
            return y
    return plainly(*arguments, **options)


def epsilon_of(layer: nn.Layer) -> float:
    """Return the number that a norm adds to mean squares."""
    found = next((value for name in EPSILONS if (value := getattr(layer, name, None)) is not None), 0.0)
    return float(found)


def is_rms_norm(layer: nn.Layer) -> bool:
    """Tell whether a layer computes an RMSNorm, by a trial on a few rows."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or len(weight.shape) != 1 or len(layer.parameters()) != 1:
        return False
    # no random numbers: the user's generator is not to move
    x = paddle.sin(paddle.arange(TRIAL_ROWS * weight.shape[0], dtype="float32")).reshape([TRIAL_ROWS, -1])
    x = x.astype(weight.dtype)
    try:
        with paddle.no_grad():
            found = layer.forward(x)
    # whatever the layer's own code raises on rows of numbers: it is not what its name says
    except Exception:
        return False
    if not isinstance(found, Tensor) or found.shape != x.shape:
        return False
    wide = x.astype("float32")
    expected = wide * paddle.rsqrt((wide * wide).mean(-1, keepdim=True) + epsilon_of(layer)) * weight.astype("float32")
    return bool(paddle.allclose(found.astype("float32"), expected.detach(), TOLERANCE, TOLERANCE))


CLASSES: dict[type[nn.Layer], Written] = {nn.MultiHeadAttention: multi_head_attention}
BY_NAME: dict[str, tuple[Callable[[nn.Layer], bool], Written]] = {"RMSNorm": (is_rms_norm, rms_norm)}


def written(layer: nn.Layer) -> Written | None:
    """Return what computes a layer by operations; None where its own forward serves."""
    if (given := CLASSES.get(type(layer))) is not None:
        return given
    for ending, (agrees, function) in BY_NAME.items():
        if type(layer).__name__.endswith(ending) and agrees(layer):
            return function
    return None
