"""Attention that keeps codes of its inputs, and is computed anew from them in backward.

Tensors are of shape (batch, tokens, heads, features), as in ``F.scaled_dot_product_attention``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import Tensor
from paddle.nn import functional as F

from actnn.operations.attention import AttentionSites, Inputs, keep_inputs
from actnn.operations.kept import counted_once
from actnn.paddle.door.calls import calls
from actnn.paddle.functions import kept
from actnn.paddle.functions.kept import Function, first_order, forward, save, saved
from actnn.paddle.functions.maps import added, samples_of, with_part
from actnn.paddle.tensors import ARRAYS, FLOATING, NAMES, widened

FLOAT_BYTES = 4
# logits, probabilities, what dropout leaves of them, and the gradient of one of them
MATRICES = 4


class Options(NamedTuple):
    """What ``F.scaled_dot_product_attention`` takes besides tensors."""

    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention."""
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, training=True, **self._asdict())


class Codes(NamedTuple):
    """How inputs are read in backward, and the tensors to save for that; as one object, for tensors count as inputs."""

    inputs: Inputs
    tensors: Sequence[Tensor | None]


def attention(
    sites: AttentionSites, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options
) -> Tensor:
    """Return ``F.scaled_dot_product_attention`` in training, which keeps codes of its inputs."""
    learn = [x is not None and not x.stop_gradient for x in (query, key, value, mask)]
    # the gradient of the values does not read them
    found = keep_inputs(ARRAYS, sites, query, key, value, learn[0] or learn[1] or learn[3])
    codes = Codes(Inputs(sites, found), [tensor for each in found if each is not None for tensor in each.tensors])
    y = AttentionFunction.record(sites.query, query, key, value, mask, options, codes)
    account(sites, query, key, y, mask if learn[3] else None)
    return y


def account(sites: AttentionSites, query: Tensor, key: Tensor, y: Tensor, learning_mask: Tensor | None) -> None:
    """Add what exact training keeps besides the inputs: probabilities, or one number for each row of them."""
    samples, rows, heads, _ = query.shape
    columns = key.shape[1] if ARRAYS.on_host(query) else 1
    sites.value.keeps(0, FLOAT_BYTES * samples * heads * rows * columns + counted_once(ARRAYS, y, sites.value))
    if learning_mask is not None:
        # an activation that is there with codes as without them
        mask_bytes = counted_once(ARRAYS, learning_mask, sites.value)
        sites.value.keeps(mask_bytes, mask_bytes)


class AttentionFunction(Function):
    """``F.scaled_dot_product_attention`` that keeps codes of queries, keys and values."""

    @staticmethod
    @forward
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options, codes: Codes
    ) -> Tensor:
        ctx.given, ctx.options, ctx.inputs = kept.Inputs(query, key, value, mask), options, codes.inputs
        ctx.shapes = [tuple(x.shape) for x in (query, key, value)]
        ctx.state = paddle.get_rng_state() if options.dropout_p > 0 else None
        ctx.seed = ctx.site.session.key(ctx.site)[0]
        save(ctx, mask, *codes.tensors)
        return options(query, key, value, mask)

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mask, *tensors = saved(ctx)
        parts = parts_of_batch(ctx, grad)
        again = Recomputation(ctx.options, ctx.given.needed, ctx.state, ctx.seed)
        scale = ctx.shapes[0][-1] ** -0.5 if ctx.options.scale is None else ctx.options.scale
        fetched = ctx.inputs.fetched(tensors)
        gradients: list[Tensor | None] = [None] * 4
        for part in parts:
            samples = None if len(parts) == 1 else part
            query, key, value = ctx.inputs.decoded(fetched, NAMES[grad.dtype], samples)
            noisy = ctx.inputs.noisy(fetched, (query, key), samples, scale)
            variances = ctx.inputs.variances(fetched, (query, key), samples) if noisy else None
            if value is None:
                # its values do not matter to its own gradient
                value = paddle.zeros([len(part), *ctx.shapes[2][1:]], grad.dtype)
            shared = samples is None or mask is None or len(mask.shape) < 4 or len(mask) == 1
            own_mask, of_part = mask if shared else samples_of(mask, part), samples_of(grad, part) if samples else grad
            if part is parts[0] and ctx.site.session.planner.wants_passing(ctx.site):
                again.measure(ctx.inputs, (query, key, value), scale, own_mask, of_part)
            found = again.gradients((query, key, value), own_mask, of_part, variances)
            for place, of_input in enumerate(found):
                if of_input is not None and place == 3 and shared:
                    gradients[place] = added(gradients[place], of_input)
                elif of_input is not None:
                    gradients[place] = with_part(gradients[place], of_input, part, parts)
        ctx.inputs.observe()
        returned: tuple[Tensor | None, ...] = ctx.given.gradients(*gradients)
        return returned


def parts_of_batch(ctx: Any, grad: Tensor) -> list[range]:
    """Return the parts of the batch that are computed anew one after another."""
    query, key, value = ctx.shapes
    samples = query[0]
    # dropout is drawn for the whole batch at once
    if ctx.options.dropout_p > 0 or not query[0] == key[0] == value[0]:
        return [range(samples)]
    decoded = grad.element_size() * sum(math.prod(shape) for shape in ctx.shapes)
    working = 0
    if ARRAYS.on_host(grad):
        matrices = MATRICES * samples * query[2] * query[1] * key[1]
        working = decoded + grad.element_size() * (math.prod(grad.shape) + matrices)
    found: list[range] = ctx.site.session.pieces(samples, decoded, working)
    return found


class Recomputation:
    """Attention computed anew by Paddle's own autograd, in the precision of its gradient.

    Dropout is drawn from ``state`` again; other noise from ``seed``.
    """

    def __init__(self, options: Options, wanted: Sequence[bool], state: Any, seed: int) -> None:
        self._options, self._wanted, self._state = options, wanted, state
        self._generator = np.random.default_rng(seed)

    def gradients(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        grad: Tensor,
        variances: Sequence[Tensor | None] | None,
    ) -> list[Tensor | None]:
        """Return the gradients that are wanted; with ``variances`` of queries and keys, freed of their bias."""
        found = self._once((*inputs, mask), grad)
        if variances is None:
            return found
        *moving, value = inputs
        noise = [None if of is None else self._noise(of) for of in variances]
        shaken = []
        for sign in (1, -1):
            moved = (moved_by(x, own, sign) for x, own in zip(moving, noise, strict=True))
            shaken.append(self._once((*moved, value, mask), grad))
        return [unbiased(*estimates) for estimates in zip(found, *shaken, strict=True)]

    def measure(
        self, inputs: Inputs, decoded: tuple[Tensor, Tensor, Tensor], scale: float, mask: Tensor | None, grad: Tensor
    ) -> None:
        """Measure, on the first sample where all have one, how much noise of each input goes on."""
        if all(len(x) == len(grad) for x in decoded):
            if mask is not None and len(mask.shape) == 4 and len(mask) > 1:
                mask = mask[:1]
            decoded, grad = (decoded[0][:1], decoded[1][:1], decoded[2][:1]), grad[:1]
        wide = [widened(x) for x in decoded]
        inputs.measure(wide, scale, lambda *moved: self._once((*moved, mask), widened(grad))[:3], self._noise)

    def _once(self, inputs: Sequence[Tensor | None], grad: Tensor) -> list[Tensor | None]:
        """Return the gradients that are wanted."""
        # a backward may run within the forward of some layer, whose calls lead here
        with (
            drawn_from(self._state),
            calls.closed(calls.frames),
            paddle.enable_grad(),
            paddle.amp.auto_cast(enable=False),
        ):
            leaves = [leaf(x, wants, grad) for x, wants in zip(inputs, self._wanted, strict=True)]
            query, key, value, mask = leaves
            assert query is not None
            assert key is not None
            assert value is not None
            y = self._options(query, key, value, mask)
            # not paddle.grad, of which there can be one at a time
            paddle.autograd.backward([y], [grad.detach()])
        return [
            own.grad if own is not None and wants else None for own, wants in zip(leaves, self._wanted, strict=True)
        ]

    def _noise(self, variances: Tensor) -> Tensor:
        """Return noise of given variances: either sign of their roots."""
        signs = 2 * self._generator.integers(0, 2, tuple(variances.shape), np.int8) - 1
        return paddle.sqrt(variances) * paddle.to_tensor(signs.astype(np.float32), place=variances.place)


def moved_by(x: Tensor, noise: Tensor | None, sign: int) -> Tensor:
    """Return an input with some noise more, or less."""
    return x if noise is None else (x + sign * noise).astype(x.dtype)


def unbiased(found: Tensor | None, above: Tensor | None, below: Tensor | None) -> Tensor | None:
    """Return an estimate whose bias that of two others, with twice the variance of noise, cancels."""
    if found is None or above is None or below is None:
        return None
    return (2 * widened(found) - (widened(above) + widened(below)) / 2).astype(found.dtype)


def leaf(x: Tensor | None, wants: bool, grad: Tensor) -> Tensor | None:
    """Return an input outside of the graph, in the precision of ``grad`` where it is numbers."""
    if x is None:
        return None
    own: Tensor = x.detach()
    if own.dtype in FLOATING and own.dtype != grad.dtype:
        own = own.astype(grad.dtype).detach()
    own.stop_gradient = not wants
    return own


@contextmanager
def drawn_from(state: Any) -> Iterator[None]:
    """Draw random numbers from a state again, and leave the present one as it is."""
    if state is None:
        yield
        return
    present = paddle.get_rng_state()
    paddle.set_rng_state(state)
    try:
        yield
    finally:
        paddle.set_rng_state(present)
