"""Attention of many heads, and embeddings, as layers of Paddle."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import Tensor, nn
from steps import distance

import actnn.paddle as actnn

WIDTH, HEADS, BATCH, TOKENS = 32, 4, 3, 17
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "itself": ({}, {}),
    "mask": ({}, {"attn_mask": True}),
    "weights": ({"need_weights": True}, {}),
    "weights and mask": ({"need_weights": True}, {"attn_mask": True}),
    "of other widths": ({"kdim": 20, "vdim": 12}, {"across": True}),
    "cache": ({}, {"cache": True}),
}


class Attending(nn.Layer):
    """One attention behind a norm, called as a case says."""

    def __init__(self, options: dict[str, Any], call: dict[str, Any]) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiHeadAttention(WIDTH, HEADS, **options)
        self.call, self.sizes = call, (options.get("kdim", WIDTH), options.get("vdim", WIDTH))
        if "across" in call:
            self.key, self.value = (self.create_parameter([BATCH, TOKENS, size]) for size in self.sizes)

    def forward(self, x: Tensor) -> Tensor:
        query = self.norm(x)
        others = (self.key, self.value) if "across" in self.call else (query, query)
        mask = paddle.arange(TOKENS) < TOKENS - 4 if "attn_mask" in self.call else None
        cache = self.attention.gen_cache(query) if "cache" in self.call else None
        found = self.attention(query, *others, attn_mask=mask, cache=cache)
        return found[0] if isinstance(found, tuple) else found


def stepped(model: nn.Layer, x: Tensor) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the output and the gradients of one step."""
    model.clear_gradients(set_to_zero=False)
    y = model(x)
    y.square().mean().backward()
    return y.numpy(), {name: own.grad.numpy().copy() for name, own in model.named_parameters()}


@pytest.mark.parametrize("case", CASES)
def test_an_attention_of_many_heads_takes_all_that_paddles_takes(case: str):
    plain, x = Attending(*CASES[case]), paddle.randn([BATCH, TOKENS, WIDTH])
    ours = actnn.QModule(deepcopy(plain), level="L2", bits=8)
    assert type(ours.attention) is actnn.QMultiHeadAttention
    assert ours.state_dict().keys() == plain.state_dict().keys()
    (expected, exact), (found, gradients) = stepped(plain, x), stepped(ours, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    largest = max(np.linalg.norm(gradient) for gradient in exact.values())
    for name, gradient in exact.items():
        assert distance(gradients[name], gradient) < 0.02 * max(np.linalg.norm(gradient), 0.1 * largest), name
    assert not ours.report().idle


def test_an_attention_made_by_hand_keeps_codes_and_computes_the_same_in_evaluation():
    attention = actnn.QMultiheadAttention(WIDTH, HEADS)
    x = paddle.randn([BATCH, TOKENS, WIDTH])
    attention(x).sum().backward()
    names = {row.layer for row in attention.site.session.report().rows}
    assert "QMultiHeadAttention/scaled_dot_product_attention.query" in names
    attention.eval()
    assert paddle.equal_all(attention(x), nn.MultiHeadAttention.forward(attention, x))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 3}, {"sparse": True}, {"scale_grad_by_freq": True}])
def test_an_embedding_is_exact_whatever_it_is_asked_for(options: dict[str, Any]):
    plain, indices, scale = nn.Embedding(20, 8, **options), paddle.randint(0, 20, [5, 70]), paddle.randn([8])
    ours = actnn.QModule(nn.Sequential(deepcopy(plain)), level="L2")
    assert type(ours[0]) is actnn.QEmbedding
    for layer in (plain, ours[0]):
        (layer(indices) * scale).sum().backward()
    found, expected = (np.asarray(layer.weight.grad) for layer in (ours[0], plain))
    np.testing.assert_array_equal(found, expected)
    kept = [row.kept_bytes for row in ours.report().rows]
    assert kept == ([] if options.get("sparse") else [4 * 5 * 70])
