"""Attention that keeps codes: exact forward, gradients from inputs that were decoded, with every option."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hand_made_sessions import exact_bytes, gradients, kept_bytes, saved_tensors, session_of
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_framework import close_tensors, same_tensors
from z_tests import squared_bias

from actnn.errors import UnsupportedError
from actnn.operations.attention import RENEWED, AttentionSites, Inputs
from actnn.operations.kept import counted_once
from actnn.torch.functions.attention import attention
from actnn.torch.tensors import ARRAYS

BATCH, HEADS, QUERIES, KEYS, WIDTH = 4, 6, 40, 40, 16
CAUSAL = torch.ones(QUERIES, KEYS).tril().bool()
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.5},
    "boolean mask": {"attn_mask": CAUSAL},
    "mask of numbers": {"attn_mask": torch.linspace(-1, 1, QUERIES * KEYS).view(QUERIES, KEYS)},
    "mask of samples": {"attn_mask": torch.linspace(-1, 1, BATCH * KEYS).view(BATCH, 1, 1, KEYS)},
    "mask of heads": {"attn_mask": torch.linspace(-1, 1, HEADS * KEYS).view(HEADS, 1, KEYS)},
    "dropout": {"dropout_p": 0.3},
    "dropout and causal": {"dropout_p": 0.3, "is_causal": True},
}
options = pytest.mark.parametrize("given", OPTIONS.values(), ids=OPTIONS)


def fine_sites(level: str = "L2", **settings) -> AttentionSites:
    """Return sites whose codes have 8 bits."""
    return AttentionSites.of(session_of(8, level, **settings), "attention")


def heads(dtype: torch.dtype = torch.float32, key_heads: int = HEADS) -> list[Tensor]:
    """Return queries, keys and values as a model makes them: heads of one row side by side."""
    made = [(HEADS, QUERIES), (key_heads, KEYS), (key_heads, KEYS)]
    return [torch.randn(BATCH, rows, count, WIDTH, dtype=dtype).transpose(1, 2) for count, rows in made]


def exact_and_ours(sites: AttentionSites, inputs: list[Tensor], **given) -> list[list[Tensor]]:
    """Return output and gradients of torch's attention and of ours, drawn from the same random numbers."""
    generator = torch.Generator().manual_seed(7)
    shape = F.scaled_dot_product_attention(*inputs, **given).shape
    grad = torch.randn(shape, generator=generator).to(inputs[0].dtype)
    found = []
    for function in (F.scaled_dot_product_attention, lambda *own, **more: attention(sites, *own, **more)):
        torch.manual_seed(3)
        found.append([*gradients(lambda *own, call=function: call(*own, **given), inputs, grad), torch.rand(5)])
    return found


def check(found: list[Tensor], exact: list[Tensor], relative: float) -> None:
    """Raise unless the outputs and the random numbers after the backward are the same, and gradients are close."""
    same_tensors(found[0], exact[0], "output")
    same_tensors(found[-1], exact[-1], "random numbers")
    for name, ours, theirs in zip("qkv", found[1:-1], exact[1:-1], strict=False):
        close_tensors(ours, theirs, relative, name)


@options
def test_eight_bits_give_the_gradients_of_torch(given):
    exact, ours = exact_and_ours(fine_sites(), heads(), **given)
    check(ours, exact, 0.02)


@options
def test_parts_of_the_batch_give_what_the_whole_does(given):
    inputs = heads()
    whole, parts = (
        exact_and_ours(fine_sites(pipeline_threshold=threshold), inputs, **given)[1] for threshold in (None, 1 << 14)
    )
    check(parts, whole, 1e-5)


def test_heads_of_queries_share_heads_of_keys():
    exact, ours = exact_and_ours(fine_sites(), heads(key_heads=2), enable_gqa=True)
    check(ours, exact, 0.02)


@pytest.mark.parametrize("shape", [(BATCH, QUERIES, WIDTH), (QUERIES, WIDTH), (2, BATCH, HEADS, QUERIES, WIDTH)])
def test_inputs_have_any_number_of_axes(shape):
    exact, ours = exact_and_ours(fine_sites(), [torch.randn(shape) for _ in range(3)])
    check(ours, exact, 0.02)


def test_keys_and_values_serve_all_samples():
    inputs = [torch.randn(size, HEADS, QUERIES, WIDTH) for size in (BATCH, 1, 1)]
    exact, ours = exact_and_ours(fine_sites(pipeline_threshold=1 << 12), inputs)
    check(ours, exact, 0.02)


@pytest.mark.parametrize("threshold", [None, 1 << 14])
@pytest.mark.parametrize("shape", [(HEADS, QUERIES, KEYS), (1, HEADS, QUERIES, KEYS), (BATCH, 1, QUERIES, KEYS)])
def test_a_mask_that_learns_has_its_gradient(shape, threshold):
    sites, inputs = fine_sites(pipeline_threshold=threshold), [*heads(), torch.randn(shape)]
    grad = torch.randn(BATCH, HEADS, QUERIES, WIDTH)
    exact = gradients(F.scaled_dot_product_attention, inputs, grad)
    ours = gradients(lambda *own: attention(sites, *own), inputs, grad)
    same_tensors(ours[0], exact[0], "output")
    for name, found, expected in zip(("q", "k", "v", "mask"), ours[1:], exact[1:], strict=True):
        close_tensors(found, expected, 0.015, name)


@pytest.mark.parametrize("learning", [(0,), (1,), (2,), (0, 2)])
def test_only_what_learns_has_a_gradient(learning):
    sites, inputs = fine_sites(), [x.requires_grad_(place in learning) for place, x in enumerate(heads())]
    wanted = [inputs[place] for place in learning]
    exact = torch.autograd.grad(F.scaled_dot_product_attention(*inputs).square().sum(), wanted)
    found = torch.autograd.grad(attention(sites, *inputs).square().sum(), wanted)
    for ours, theirs in zip(found, exact, strict=True):
        close_tensors(ours, theirs, 0.01)


def test_values_that_learn_alone_are_not_kept():
    sites, (query, key, value) = fine_sites(), heads()
    attention(sites, query, key, value.requires_grad_())
    kept = [row.kept_bytes for row in sites.query.session.report().rows]
    assert kept[0] == kept[1] > 0
    assert kept[2] == 0


@pytest.mark.parametrize("bits", [2, 4])
def test_kept_bytes_are_those_of_the_codes(bits):
    sites = AttentionSites.of(session_of(bits), "attention")
    session, inputs = sites.query.session, [x.requires_grad_() for x in heads()]
    saved = saved_tensors(lambda: attention(sites, *inputs, is_causal=True))
    assert kept_bytes(session) == sum(tensor.numel() for tensor in saved)
    elements = BATCH * HEADS * QUERIES * WIDTH
    planes = [row.kept_bytes * 8 / elements for row in session.report().rows]
    assert [math.floor(each) for each in planes] == [bits + 2] * 3
    # queries, keys, values, the output, and a number for each query and head
    assert exact_bytes(session) == 4 * (4 * elements + BATCH * HEADS * QUERIES)


def test_dropout_keeps_a_state_instead_of_a_mask():
    sites, inputs = fine_sites(), [x.requires_grad_() for x in heads()]
    state = torch.get_rng_state()
    saved = saved_tensors(lambda: attention(sites, *inputs, dropout_p=0.5))
    assert kept_bytes(sites.query.session) == sum(tensor.numel() for tensor in saved)
    assert sum(torch.equal(tensor, state) for tensor in saved) == 1


def test_a_map_behind_does_not_count_the_output_again():
    sites, inputs = fine_sites(), [x.requires_grad_() for x in heads()]
    y = attention(sites, *inputs)
    rows = y.transpose(1, 2).reshape(BATCH, QUERIES, HEADS * WIDTH)
    assert counted_once(ARRAYS, rows, sites.value) == 0


def test_inputs_that_are_one_tensor_have_noise_of_their_own():
    sites, x = AttentionSites.of(session_of(2), "attention"), torch.randn(BATCH, HEADS, QUERIES, WIDTH)
    x = x.requires_grad_() * 1
    saved = saved_tensors(lambda: attention(sites, x, x, x))
    keys = {bytes(code[:16].tolist()) for code in saved}
    assert len(saved) == len(keys) == 3


def test_a_code_that_is_there_serves_attention_too():
    session = session_of(4)
    first, second = (AttentionSites.of(session, name) for name in ("first", "second"))
    inputs = [(x.requires_grad_() * 1) for x in heads()]
    attention(first, *inputs)
    attention(second, *inputs)
    assert {row.layer: row.readers for row in session.report().rows} == {
        **{f"first.{role}": (f"second.{role}",) for role in ("query", "key", "value")},
        # its account has what exact training keeps of the output
        "second.value": (),
    }


@pytest.mark.parametrize("kind", ["evaluation", "no_grad", "frozen"])
def test_nothing_is_kept_where_no_code_is_wanted(kind):
    sites, inputs = fine_sites(), [x.requires_grad_(kind != "frozen") for x in heads()]
    with torch.set_grad_enabled(kind != "no_grad"):
        y = attention(sites, *inputs, training=kind != "evaluation")
    same_tensors(y.detach(), F.scaled_dot_product_attention(*inputs).detach())
    assert sites.query.session.report().rows == []


def test_the_gradient_of_a_gradient_is_refused():
    sites, inputs = fine_sites(), [x.requires_grad_() for x in heads()]
    with pytest.raises(UnsupportedError, match=r"attention\.query"):
        torch.autograd.grad(attention(sites, *inputs).sum(), inputs, create_graph=True)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_retained_graph_gives_the_same_gradient_again(dropout):
    sites, inputs = fine_sites(), [x.requires_grad_() for x in heads()]
    loss = attention(sites, *inputs, dropout_p=dropout).square().sum()
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    for again, before in zip(torch.autograd.grad(loss, inputs), first, strict=True):
        same_tensors(again, before)


def test_half_precision_stays_half():
    exact, ours = exact_and_ours(fine_sites(), heads(torch.bfloat16))
    check(ours, exact, 0.02)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_decides_the_precision(inside):
    sites, inputs, mask = fine_sites(), heads(), torch.randn(QUERIES, KEYS)
    found = []
    for function in (F.scaled_dot_product_attention, lambda *own: attention(sites, *own)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        with torch.autocast("cpu", torch.bfloat16):
            y = function(*leaves, mask)
            if inside:
                found.append([y, *torch.autograd.grad(y.float().square().sum(), leaves)])
        if not inside:
            found.append([y, *torch.autograd.grad(y.float().square().sum(), leaves)])
    exact, ours = found
    assert ours[0].dtype == torch.bfloat16
    same_tensors(ours[0], exact[0])
    for own, theirs in zip(ours[1:], exact[1:], strict=True):
        close_tensors(own, theirs, 0.03)


@pytest.mark.parametrize("level", ["L2", "L2.5", "L3", "L3.1", "L4", "L5"])
def test_every_level_that_makes_codes_has_the_gradient(level):
    exact, ours = exact_and_ours(fine_sites(level), heads())
    check(ours, exact, 0.02)


def test_noise_of_logits_is_measured_again_however_many_keys_were_taken(monkeypatch):
    sites, measured = fine_sites(), []
    measure = Inputs._measure_noise
    monkeypatch.setattr(Inputs, "_measure_noise", lambda *given: (measured.append(1), measure(*given)))
    # an odd number of keys before the first step, of each of which two are taken
    sites.query.session.key(sites.query)
    for _ in range(2 * RENEWED):
        attention(sites, *(x.requires_grad_() for x in heads())).sum().backward()
        sites.query.session.next_step()
    assert 3 <= len(measured) <= 5


def test_a_mode_that_leads_to_attention_is_not_entered_again_in_backward():
    sites, inputs, calls = fine_sites(), [x.requires_grad_() for x in heads()], []

    class Door(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):
            if function is F.scaled_dot_product_attention:
                calls.append(function)
                return attention(sites, *arguments, **(named or {}))
            return function(*arguments, **(named or {}))

    with Door():
        loss = F.scaled_dot_product_attention(*inputs).square().sum()
        torch.autograd.grad(loss, inputs)
    assert len(calls) == 1


def test_the_bias_of_five_bits_is_lost_in_noise():
    """Logits of deviation 3, and codes of 5 bits."""
    sites = AttentionSites.of(session_of(3), "attention")
    assert [site.bits for site in sites] == [5, 5, 5]
    inputs = [torch.randn(2, 4, 64, 32) * factor for factor in (3**0.5, 3**0.5, 1)]
    grad = torch.randn(2, 4, 64, 32)
    exact = gradients(F.scaled_dot_product_attention, inputs, grad)
    draws = [gradients(lambda *own: attention(sites, *own), inputs, grad) for _ in range(100)]
    for place, name in enumerate("qkv", start=1):
        samples = np.stack([draw[place].numpy() for draw in draws])
        bias, error = squared_bias(samples, exact[place].numpy())
        assert bias < 2 * error, f"{name}: squared bias {bias:.2g}, error {error:.2g}"


def test_a_checkpointed_block_computes_attention_anew():
    sites, inputs = fine_sites(), [x.requires_grad_() for x in heads()]
    exact = torch.autograd.grad(F.scaled_dot_product_attention(*inputs).square().sum(), inputs)
    y = checkpoint(lambda *own: attention(sites, *[x * 1 for x in own]), *inputs, use_reentrant=False)
    for found, expected in zip(torch.autograd.grad(y.square().sum(), inputs), exact, strict=True):
        close_tensors(found, expected, 0.02)


def test_an_overflow_shows_in_the_gradient():
    sites, inputs = fine_sites(), heads()
    inputs[0][1, 2, 3, 4] = float("inf")
    grad = torch.randn(BATCH, HEADS, QUERIES, WIDTH)
    found = gradients(lambda *own: attention(sites, *own), inputs, grad)
    assert found[1][1, 2, 3].isnan().all()
    assert found[1][0].isfinite().all()
