"""Attention of many heads: maps and an attention that keep codes, for ``F.multi_head_attention_forward`` and layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.model.door import DECLINED, Frame, Rule
from actnn.torch.door.activations import dropout
from actnn.torch.door.attention import scaled_dot_product_attention, softmax
from actnn.torch.door.maps import coded, linear, matmul


@dataclass(frozen=True)
class Heads:
    """What an attention of many heads is made of.

    ``weights`` project queries, keys and values one after another; ``joint`` weight and bias do so in one where there
    are such. ``added`` are a key and a value that learn, and ``zero`` tells of one of zeros.
    """

    count: int
    width: int
    joint: tuple[Tensor | None, Tensor | None]
    weights: tuple[Tensor | None, Tensor | None, Tensor | None]
    out: tuple[Tensor, Tensor | None]
    added: tuple[Tensor | None, Tensor | None] = (None, None)
    zero: bool = False

    @property
    def more(self) -> int:
        """How many keys there are besides those that are given."""
        return (self.added[0] is not None) + self.zero

    @property
    def separately(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of queries, keys and values."""
        weight, bias = self.joint
        weights: Any = self.weights if weight is None else weight.chunk(3)
        return list(zip(weights, (None,) * 3 if bias is None else bias.chunk(3), strict=True))


@dataclass(frozen=True)
class Asked:
    """What one call wants: masks, dropout, and whether weights are to be returned, each by itself or their mean."""

    mask: Tensor | None = None
    padding: Tensor | None = None
    causal: bool = False
    dropout: float = 0.0
    weights: bool = False
    mean: bool = True
    batch_first: bool = False


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
    """Return ``F.multi_head_attention_forward``; declines keys and values that were projected before."""
    if static_k is not None or static_v is not None:
        return DECLINED
    heads = Heads(
        num_heads,
        embed_dim_to_check,
        (None if use_separate_proj_weight else in_proj_weight, in_proj_bias),
        (q_proj_weight, k_proj_weight, v_proj_weight),
        (out_proj_weight, out_proj_bias),
        (bias_k, bias_v),
        add_zero_attn,
    )
    dropped = dropout_p if training else 0.0
    asked = Asked(attn_mask, key_padding_mask, is_causal, dropped, need_weights, average_attn_weights)
    return attended(frame, query, key, value, heads, asked)


def attended(frame: Frame, query: Any, key: Any, value: Any, heads: Heads, asked: Asked) -> Any:
    """Return the attention and its weights, None where these are not asked for; DECLINED where torch has to do it."""
    if not (frame.training and coded(query, key, value) and fits(query, key, value, heads, asked)):
        return DECLINED
    batched = query.dim() == 3
    if not batched:
        # one tensor in two places stays one
        lone = {id(x): x.unsqueeze(1) for x in (query, key, value)}
        query, key, value = (lone[id(x)] for x in (query, key, value))
    batch_first = asked.batch_first and batched
    parts = split(frame, query, key, value, heads, batch_first)
    parts, mask = widened(parts, heads, joint_mask(asked.mask, asked.padding, parts[0], parts[1]))
    weights = None
    if asked.weights:
        found, weights = weighed(frame, parts, mask, asked)
    else:
        # a hint only, where a mask is given
        causal = asked.causal and asked.padding is None
        found = over(frame, parts, None if causal else mask, asked.dropout, causal)
    joined = (found.transpose(1, 2) if batch_first else found.permute(2, 0, 1, 3)).flatten(2)
    y = mapped(frame, joined, *heads.out)
    if not batched:
        y, weights = y.squeeze(1), None if weights is None else weights.squeeze(0)
    return y, weights


def fits(query: Tensor, key: Tensor, value: Tensor, heads: Heads, asked: Asked) -> bool:
    """Tell whether shapes are as they should be: what is wrong is for torch to tell."""
    if query.dim() not in (2, 3) or key.dim() != query.dim() or value.dim() != query.dim():
        return False
    if query.shape[-1] != heads.width or heads.width % heads.count or (asked.causal and asked.mask is None):
        return False
    first = asked.batch_first and query.dim() == 3
    (length, batch), (reach, other), given = (sizes(x, first) for x in (query, key, value))
    if batch != other or (reach, other) != given:
        return False
    of_mask, of_padding = ((length, reach), (batch * heads.count, length, reach)), (batch, reach)
    # with a hint of a causal mask torch forgets the keys that are added
    if (query.dim() == 2 and asked.padding is not None) or (asked.causal and heads.more):
        return False
    masks = [x for x in (asked.mask, asked.padding) if x is not None]
    if any(x.dtype is not torch.bool and not x.is_floating_point() for x in masks):
        return False
    fitting = asked.mask is None or tuple(asked.mask.shape) in of_mask
    return fitting and (asked.padding is None or tuple(asked.padding.shape) == of_padding)


def sizes(x: Tensor, batch_first: bool) -> tuple[int, int]:
    """Return how many tokens and samples a tensor holds."""
    if x.dim() == 2:
        return x.shape[0], 1
    return (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])


def split(frame: Frame, query: Tensor, key: Tensor, value: Tensor, heads: Heads, batch_first: bool) -> list[Tensor]:
    """Return queries, keys and values of all heads, of shape (batch, heads, tokens, width of a head)."""
    weight, bias = heads.joint
    if weight is not None and query is key and key is value:
        projected = mapped(frame, query, weight, bias).chunk(3, -1)
    else:
        given = zip((query, key, value), heads.separately, strict=True)
        projected = tuple(mapped(frame, x, *own) for x, own in given)
    apart = (x.unflatten(-1, (heads.count, heads.width // heads.count)) for x in projected)
    return [x.transpose(1, 2) if batch_first else x.permute(1, 2, 0, 3) for x in apart]


def widened(parts: list[Tensor], heads: Heads, mask: Tensor | None) -> tuple[list[Tensor], Tensor | None]:
    """Return parts and mask with keys and values besides those that were given."""
    if not heads.more:
        return parts, mask
    query, *both = parts
    rows = (len(query), heads.count, 1, query.shape[-1])
    for place, own in enumerate(heads.added):
        more = [] if own is None else [own.view(1, heads.count, 1, -1).expand(rows)]
        both[place] = torch.cat([both[place], *more, *([query.new_zeros(rows)] if heads.zero else [])], 2)
    return [query, *both], None if mask is None else F.pad(mask, (0, heads.more))


def over(frame: Frame, parts: list[Tensor], mask: Tensor | None, dropped: float, causal: bool) -> Tensor:
    """Return the attention, which keeps codes of its three inputs."""
    query, key, value = parts
    found = scaled_dot_product_attention(
        frame, F.scaled_dot_product_attention, query, key, value, mask, dropped, causal
    )
    if found is DECLINED:
        return F.scaled_dot_product_attention(query, key, value, mask, dropped, causal)
    y: Tensor = found
    return y


def weighed(frame: Frame, parts: list[Tensor], mask: Tensor | None, asked: Asked) -> tuple[Tensor, Tensor]:
    """Return the attention written out, as products of matrices and a softmax, and its weights."""
    query, key, value = parts
    scaled = query * math.sqrt(1.0 / query.shape[-1])
    logits = served(matmul, frame, torch.matmul, scaled, key.transpose(-2, -1))
    weights = served(softmax, frame, F.softmax, logits if mask is None else logits + mask, -1)
    if asked.dropout > 0:
        weights = served(dropout, frame, F.dropout, weights, asked.dropout)
    found = served(matmul, frame, torch.matmul, weights, value)
    return found, weights.mean(1) if asked.mean else weights


def served(rule: Rule, frame: Frame, function: Any, *arguments: Any) -> Tensor:
    """Return what a rule makes of a call, or the function where it declines."""
    found = rule(frame, function, *arguments)
    y: Tensor = function(*arguments) if found is DECLINED else found
    return y


def mapped(frame: Frame, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a linear map of a tensor, which keeps a code where the weight learns."""
    return served(linear, frame, F.linear, x, weight, bias)


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


RULES: dict[Any, Rule] = {F.multi_head_attention_forward: multi_head_attention}
