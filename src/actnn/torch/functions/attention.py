"""Attention that keeps codes of its inputs, and is computed anew from them in backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from actnn.operations.attention import AttentionSites, Inputs, keep_inputs
from actnn.operations.kept import counted_once
from actnn.torch.functions.kept import KeepingFunction, first_order
from actnn.torch.functions.maps import added, samples_of
from actnn.torch.tensors import ARRAYS, FLOATING, NAMES

LOGSUMEXP_BYTES = 4
# logits, probabilities and the gradient of either, where the gradient of a mask is asked for
MATRICES = 3

# queries, keys and values as their codes tell them
Decoded = tuple[Tensor, Tensor, Tensor]


class Options(NamedTuple):
    """What ``F.scaled_dot_product_attention`` takes besides tensors."""

    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention."""
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **self._asdict())


def attention(
    sites: AttentionSites,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    training: bool = True,
) -> Tensor:
    """Return ``F.scaled_dot_product_attention``, which keeps codes of its inputs where a gradient will read them."""
    options = Options(dropout_p, is_causal, scale, enable_gqa)
    inputs = (query, key, value, attn_mask)
    learn = [x is not None and x.requires_grad for x in inputs]
    empty = any(x.numel() == 0 for x in (query, key, value))
    if not (training and sites.query.compresses and torch.is_grad_enabled() and any(learn)) or empty:
        return options(*inputs)
    reads_value = learn[0] or learn[1] or learn[3]
    kept = keep_inputs(ARRAYS, sites, query, key, value, reads_value)
    saved = [tensor for each in kept if each is not None for tensor in each.tensors]
    y: Tensor = AttentionFunction.apply(*inputs, sites, options, Inputs(sites, kept), saved)
    account(sites, y, attn_mask if learn[3] else None)
    return y


def account(sites: AttentionSites, y: Tensor, learning_mask: Tensor | None) -> None:
    """Add what exact training keeps besides the inputs: the output, and one number for each query and head."""
    # the map behind reads heads side by side, and must not count the same memory again
    beside = y.transpose(1, 2).flatten(2) if y.dim() == 4 and y.transpose(1, 2).is_contiguous() else y
    positions = y.numel() // y.shape[-1]
    sites.value.keeps(0, counted_once(ARRAYS, beside, sites.value) + LOGSUMEXP_BYTES * positions)
    if learning_mask is not None:
        # an activation that is there with codes as without them
        mask_bytes = counted_once(ARRAYS, learning_mask, sites.value)
        sites.value.keeps(mask_bytes, mask_bytes)


class AttentionFunction(KeepingFunction):
    """``F.scaled_dot_product_attention`` that keeps codes of queries, keys and values."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        sites: AttentionSites,
        options: Options,
        inputs: Inputs,
        saved: list[Tensor],
    ) -> Tensor:
        ctx.site, ctx.options, ctx.inputs = sites.query, options, inputs
        ctx.shapes = (query.shape, key.shape, value.shape)
        # what is drawn from it in backward is drawn again in a second one
        ctx.seed = sites.query.session.key(sites.query)[0]
        state = random_state(query.device) if options.dropout_p > 0 else None
        if state is not None:
            sites.value.keeps(ARRAYS.nbytes(state))
        ctx.save_for_backward(mask, state, *saved)
        return options(query, key, value, mask)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mask, state, *saved = ctx.saved_tensors
        parts = parts_of_batch(ctx, grad, mask)
        again = Recomputation(ctx.options, ctx.needs_input_grad[:4], state, grad.device, ctx.seed)
        scale = ctx.shapes[0][-1] ** -0.5 if ctx.options.scale is None else ctx.options.scale
        fetched = ctx.inputs.fetched(saved)
        gradients: list[Tensor | None] = [None] * 4
        for part in parts:
            samples = None if len(parts) == 1 else part
            query, key, value = ctx.inputs.decoded(fetched, NAMES[grad.dtype], samples)
            noisy = ctx.inputs.noisy(fetched, (query, key), samples, scale)
            variances = ctx.inputs.variances(fetched, (query, key), samples) if noisy else None
            if value is None:
                # its values do not matter to its own gradient
                value = grad.new_zeros(ctx.shapes[2] if samples is None else (len(part), *ctx.shapes[2][1:]))
            own_mask = mask if samples is None else mask_of(mask, part, grad.dim())
            of_part = grad if samples is None else samples_of(grad, part)
            if part is parts[0] and ctx.site.session.planner.wants_passing(ctx.site):
                again.measure(ctx.inputs, (query, key, value), scale, own_mask, of_part)
            found = again.gradients((query, key, value), own_mask, of_part, variances)
            collect(gradients, found, part, parts, sums_mask=own_mask is mask)
        ctx.inputs.observe()
        return *gradients, None, None, None, None


def parts_of_batch(ctx: Any, grad: Tensor, mask: Tensor | None) -> list[range]:
    """Return the parts of the batch that are computed anew one after another."""
    query, key, value = ctx.shapes
    samples = query[0]
    # dropout is drawn for the whole batch at once, and only what all three have as their first axis can be cut
    alike = len(query) == len(key) == len(value) > 2 and query[0] == key[0] == value[0]
    if ctx.options.dropout_p > 0 or not alike:
        return [range(samples)]
    decoded = grad.element_size() * sum(shape.numel() for shape in ctx.shapes)
    working = 0
    if ARRAYS.on_host(grad):
        learns = mask is not None and ctx.needs_input_grad[3]
        matrices = MATRICES * grad.numel() // grad.shape[-1] * key[-2] if learns else 0
        working = decoded + grad.element_size() * (grad.numel() + matrices)
    found: list[range] = ctx.site.session.pieces(samples, decoded, working)
    return found


def mask_of(mask: Tensor | None, part: range, axes: int) -> Tensor | None:
    """Return the mask of a part of the batch: some of its samples, or the whole of one that serves all samples."""
    if mask is None or mask.dim() < axes or mask.shape[0] == 1:
        return mask
    return samples_of(mask, part)


class Recomputation:
    """Attention computed anew by torch's own autograd, in the precision of its gradient.

    Dropout is drawn from ``state`` again; other noise from ``seed``.
    """

    def __init__(
        self, options: Options, wanted: Sequence[bool], state: Tensor | None, device: torch.device, seed: int
    ) -> None:
        self._options, self._wanted, self._state = options, wanted, state
        self._device, self._seed = device, seed
        self._generator: torch.Generator | None = None

    def gradients(
        self, inputs: Decoded, mask: Tensor | None, grad: Tensor, variances: Sequence[Tensor | None] | None
    ) -> list[Tensor | None]:
        """Return the gradients that are wanted; with ``variances`` of queries and keys, freed of their bias."""
        found = self._once(inputs, mask, grad)
        if variances is None:
            return found
        query, key, value = inputs
        noise = [None if of is None else self._noise(of) for of in variances]
        shaken = []
        for sign in (1, -1):
            moved = [moved_by(x, own, sign) for x, own in zip((query, key), noise, strict=True)]
            shaken.append(self._once((moved[0], moved[1], value), mask, grad))
        return [unbiased(*estimates) for estimates in zip(found, *shaken, strict=True)]

    def measure(self, inputs: Inputs, decoded: Decoded, scale: float, mask: Tensor | None, grad: Tensor) -> None:
        """Measure, on the first sample where all have one, how much noise of each input goes on."""
        if grad.dim() > 3 and all(len(x) == len(grad) for x in decoded):
            first = range(1)
            mask, grad = mask_of(mask, first, grad.dim()), grad[:1]
            query, key, value = (x[:1].float() for x in decoded)
        else:
            query, key, value = (x.float() for x in decoded)

        def compute(*moved: Tensor) -> list[Tensor | None]:
            return self._once((moved[0], moved[1], moved[2]), mask, grad.float())[:3]

        inputs.measure((query, key, value), scale, compute, self._noise)

    def _once(self, inputs: Decoded, mask: Tensor | None, grad: Tensor) -> list[Tensor | None]:
        """Return the gradients that are wanted."""
        # a mode that leads to this operation must not lead here again
        with (
            drawn_from(self._state, self._device),
            torch.enable_grad(),
            torch.autocast(self._device.type, enabled=False),
            torch._C.DisableTorchFunction(),
        ):
            wants = self._wanted
            query, key, value = (x.detach().requires_grad_(own) for x, own in zip(inputs, wants, strict=False))
            bias = None if mask is None else mask.detach().requires_grad_(wants[3])
            added_bias = bias.to(grad.dtype) if bias is not None and bias.dtype in FLOATING else bias
            y = self._options(query, key, value, added_bias)
            leaves = (query, key, value, bias)
            learning = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
            found = iter(torch.autograd.grad(y, learning, grad))
        return [next(found) if own else None for own in wants]

    def _noise(self, variances: Tensor) -> Tensor:
        """Return noise of given variances: either sign of their roots."""
        if self._generator is None:
            self._generator = torch.Generator(self._device).manual_seed(self._seed)
        signs = torch.randint(0, 2, variances.shape, generator=self._generator, device=self._device)
        return variances.sqrt() * (2 * signs - 1)


def moved_by(x: Tensor, noise: Tensor | None, sign: int) -> Tensor:
    """Return an input with some noise more, or less."""
    return x if noise is None else (x + sign * noise).to(x.dtype)


def unbiased(found: Tensor | None, above: Tensor | None, below: Tensor | None) -> Tensor | None:
    """Return an estimate whose bias that of two others, with twice the variance of noise, cancels."""
    if found is None or above is None or below is None:
        return None
    return (2 * found.float() - (above.float() + below.float()) / 2).to(found.dtype)


def collect(
    gradients: list[Tensor | None], found: list[Tensor | None], part: range, parts: list[range], sums_mask: bool
) -> None:
    """Put the gradients of a part of the batch to those of the parts before; a mask of all samples has their sum."""
    for place, own in enumerate(found):
        if own is None or len(parts) == 1:
            gradients[place] = own
        elif place == 3 and sums_mask:
            gradients[place] = added(gradients[place], own)
        else:
            whole = gradients[place]
            if whole is None:
                whole = gradients[place] = own.new_empty((parts[-1].stop, *own.shape[1:]))
            samples_of(whole, part).copy_(own)


def random_state(device: torch.device) -> Tensor:
    """Return the state from which the next random numbers on a device are drawn."""
    if device.type == "cpu":
        return torch.get_rng_state()
    state: Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


@contextmanager
def drawn_from(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Draw random numbers from a state again, and leave the present one as it is."""
    if state is None:
        yield
        return
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type=device.type):
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
        yield
