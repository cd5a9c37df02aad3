"""Attention of many heads, and embeddings, as layers: all that they take, what they keep, and torch's fast path."""

from __future__ import annotations

from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from z_tests import check_unbiased

import actnn

WIDTH, HEADS, BATCH, TOKENS, REACH = 32, 4, 3, 17, 23

# how a layer is made, and how it is called: with masks by name, and whether keys are queries
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "itself": ({}, {"need_weights": False}),
    "batch first": ({"batch_first": True}, {"need_weights": False}),
    "weights": ({"batch_first": True}, {}),
    "weights of each head": ({}, {"average_attn_weights": False}),
    "mask": ({"batch_first": True}, {"attn_mask": "plain", "need_weights": False}),
    "mask of numbers": ({}, {"attn_mask": "numbers", "need_weights": False}),
    "mask of each head": ({"batch_first": True}, {"attn_mask": "heads", "need_weights": False}),
    "mask and weights": ({"batch_first": True}, {"attn_mask": "plain"}),
    "padding": ({"batch_first": True}, {"key_padding_mask": "padding", "need_weights": False}),
    "padding and mask": ({}, {"key_padding_mask": "padding", "attn_mask": "plain", "need_weights": False}),
    "causal": ({"batch_first": True}, {"attn_mask": "causal", "is_causal": True, "need_weights": False}),
    "causal with weights": ({"batch_first": True}, {"attn_mask": "causal", "is_causal": True}),
    "no bias": ({"bias": False}, {"need_weights": False}),
    "key and value that learn": ({"add_bias_kv": True}, {"attn_mask": "plain", "need_weights": False}),
    "zeros": ({"add_zero_attn": True, "batch_first": True}, {"key_padding_mask": "padding"}),
    "both": ({"add_zero_attn": True, "add_bias_kv": True}, {"need_weights": False}),
    "across": ({"batch_first": True}, {"across": True, "need_weights": False}),
    "of other widths": ({"kdim": 20, "vdim": 12}, {"across": True, "need_weights": False}),
    "of other widths with weights": ({"kdim": 20, "vdim": 12, "batch_first": True}, {"across": True}),
    "without a batch": ({"batch_first": True}, {"alone": True, "need_weights": False}),
    "without a batch, with weights": ({}, {"alone": True}),
}


def masks(reach: int) -> dict[str, Tensor]:
    """Return masks of all kinds, each of which leaves something to see everywhere."""
    padding = torch.zeros(BATCH, reach, dtype=torch.bool)
    padding[1, reach // 2 :] = True
    heads = torch.rand(BATCH * HEADS, TOKENS, reach) < 0.2
    heads[..., 0] = False
    return {
        "plain": heads[0],
        "numbers": torch.randn(TOKENS, reach),
        "heads": heads,
        "padding": padding,
        "causal": torch.ones(TOKENS, reach, dtype=torch.bool).triu(1),
    }


class Attending(nn.Module):
    """One attention behind a norm, called as a case says."""

    def __init__(self, options: dict[str, Any], call: dict[str, Any]) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, HEADS, **options)
        self.across, self.alone = call.get("across", False), call.get("alone", False)
        self.first = options.get("batch_first", False) and not self.alone
        reach = REACH if self.across else TOKENS
        self.call = {name: value for name, value in call.items() if name not in ("across", "alone")}
        found = masks(reach)
        for name in ("attn_mask", "key_padding_mask"):
            if name in self.call:
                self.call[name] = found[self.call[name]]
        sizes = (options.get("kdim", WIDTH), options.get("vdim", WIDTH))
        self.others = nn.ParameterList(torch.randn(*self.shape(reach), size) for size in sizes if self.across)

    def shape(self, tokens: int) -> tuple[int, ...]:
        if self.alone:
            return (tokens,)
        return (BATCH, tokens) if self.first else (tokens, BATCH)

    def forward(self, x: Tensor) -> Tensor:
        query = self.norm(x)
        key, value = self.others if self.across else (query, query)
        y, weights = self.attention(query, key, value, **self.call)
        return y if weights is None else y.sum() + (weights * torch.arange(weights.shape[-1])).sum()


def stepped(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output and the gradients of one step."""
    model.zero_grad(set_to_none=True)
    y = model(x)
    y.square().mean().backward()
    return y.detach(), {name: own.grad.clone() for name, own in model.named_parameters()}


@pytest.mark.parametrize("case", CASES)
def test_an_attention_of_many_heads_takes_all_that_torchs_takes(case: str):
    plain = Attending(*CASES[case])
    x = torch.randn(*plain.shape(TOKENS), WIDTH)
    ours = actnn.QModule(deepcopy(plain), level="L2", bits=8)
    assert type(ours.attention) is actnn.QMultiheadAttention
    assert ours.state_dict().keys() == plain.state_dict().keys()
    (expected, exact), (found, gradients) = stepped(plain, x), stepped(ours, x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for name, gradient in exact.items():
        # what has no gradient but for rounding, as the bias of keys, counts as much as the whole
        scale = max(gradient.norm(), 0.01 * torch.stack([own.norm() for own in exact.values()]).max())
        assert (gradients[name] - gradient).norm() < 0.02 * scale, name
    assert not [part for part in ours.report().whole.parts if part.layer.startswith("attention")]


def test_its_gradient_is_unbiased_where_weights_are_asked_for():
    plain = Attending(*CASES["weights"])
    x = torch.randn(BATCH, TOKENS, WIDTH)
    exact = stepped(plain, x)[1]["attention.in_proj_weight"].numpy()
    ours = actnn.QModule(plain, level="L2", bits=4)
    found = np.stack([stepped(ours, x)[1]["attention.in_proj_weight"].numpy() for _ in range(200)])
    # a loss that is squared has a bias of its own of the second order in none of the codes: its factor is exact
    check_unbiased(found, exact, 4e-3 * np.abs(exact).max())


def test_what_is_wrong_is_told_in_the_words_of_torch():
    attention = actnn.QMultiheadAttention(WIDTH, HEADS)
    x = torch.randn(TOKENS, BATCH, WIDTH)
    with pytest.raises(RuntimeError, match="shape of the 2D attn_mask"):
        attention(x, x, x, attn_mask=torch.zeros(1, TOKENS, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="is_causal hint"):
        attention(x, x, x, is_causal=True, need_weights=False)


def test_an_attention_made_by_hand_keeps_codes():
    attention = actnn.QMultiheadAttention(WIDTH, HEADS, batch_first=True)
    x = torch.randn(BATCH, TOKENS, WIDTH, requires_grad=True)
    y, _ = attention(x, x, x, need_weights=False)
    y.sum().backward()
    names = {row.layer for row in attention.site.session.report().rows}
    assert "QMultiheadAttention/scaled_dot_product_attention.query" in names
    assert not attention.site.session.report().idle


def test_what_stays_exact_is_named():
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, HEADS)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, key_padding_mask=torch.zeros(TOKENS, dtype=torch.bool))[0]

    model = actnn.QModule(Padded())
    model(torch.randn(TOKENS, WIDTH)).sum().backward()
    (part,) = model.report().whole.parts
    assert part.layer == "attention"
    assert "its form is not served" in part.reason


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layers_keep_torchs_fast_path_in_evaluation(norm_first: bool):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, batch_first=True, norm_first=norm_first)
    plain = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    x, padding = torch.randn(BATCH, TOKENS, WIDTH), masks(TOKENS)["padding"]
    with torch.no_grad():
        expected = plain(x), plain(x, src_key_padding_mask=padding)
    ours = actnn.QModule(plain)
    assert "QMultiheadAttention" in repr(ours)
    with (
        torch.no_grad(),
        patch.object(torch, "_transformer_encoder_layer_fwd", wraps=torch._transformer_encoder_layer_fwd) as fast,
    ):
        found = ours(x), ours(x, src_key_padding_mask=padding)
    assert fast.call_count == 4
    assert all(map(torch.equal, found, expected))
    ours.train()
    ours(x).sum().backward()
    assert ours.report().ratio > 8
    assert ours.restore() is plain
    assert "forward" not in plain.layers[0].__dict__


def embedded(layer: nn.Module, indices: Tensor, scale: Tensor) -> Tensor:
    """Return the gradient of an embedding's weight."""
    layer.zero_grad(set_to_none=True)
    (layer(indices) * scale).sum().backward()
    return layer.weight.grad.to_dense()


@pytest.mark.parametrize(
    "options",
    [{}, {"padding_idx": 3}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_an_embedding_is_exact_whatever_it_is_asked_for(options: dict[str, Any]):
    plain = nn.Embedding(20, 8, **options)
    indices, scale = torch.randint(20, (5, 70)), torch.randn(8)
    ours = actnn.QModule(nn.Sequential(deepcopy(plain)), level="L2")
    assert type(ours[0]) is actnn.QEmbedding
    assert torch.equal(embedded(ours[0], indices, scale), embedded(plain, indices, scale))
    assert torch.equal(ours[0].weight, plain.weight)


def test_an_embedding_keeps_its_indices_in_half_the_bytes():
    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(50, 8))
            self.layer = nn.Embedding(50, 8)

        def forward(self, indices: Tensor) -> Tensor:
            return F.embedding(indices, self.table) + self.layer(indices + 1)

    model = actnn.QModule(Looked())
    model(torch.randint(49, (4, 100))).sum().backward()
    rows = {row.layer: (row.exact_bytes, row.kept_bytes) for row in model.report().rows}
    assert rows == {"model/embedding": (3200, 1600), "layer": (3200, 1600)}
