"""Softmax, and its logarithm.

Keeps: a code of the probabilities p, along their square root: small ones, which are most, have the finer steps.
Shares: the code of a softmax with its readers, such as the product with values in an attention.
Reads in backward: the decoded probabilities, p (g - Σ p g) for a softmax and g - p Σ g for its logarithm.
Noise: the gradient of a softmax is quadratic in p, so that decoding alone would take Var(p̃) g from it on average. The
code's steps tell that variance, and the gradient has it back: it is unbiased. That of the logarithm is linear in p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actnn.format import AFFINE, ROOT, Family, Rounding
from actnn.kernels.contract import Array
from actnn.operations.kept import Kept, Reading, itself, reading_of
from actnn.operations.variances import variance
from actnn.session.plans import code_plan
from actnn.session.site import Site
from actnn.session.tensors import Tensors

# along a curve the mean of two levels is not the value between them
FAMILIES: dict[Rounding, Family] = {Rounding.DITHER: ROOT, Rounding.STOCHASTIC: AFFINE, Rounding.NEAREST: ROOT}

# arrays of the size of the decoded probabilities that are there together while a gradient is computed
TEMPORARIES = 4


def keep_probabilities(tensors: Tensors, p: Array, site: Site, exact_bytes: int = 0, batched: bool = True) -> Kept:
    """Return a code of probabilities, or themselves where that would not be larger.

    With ``batched`` their first axis counts samples; otherwise they are coded as one, and short rows share groups.
    """
    family = FAMILIES[site.session.policy.rounding]
    order = tensors.order(p, batched=batched and len(p.shape) > 1)
    plan = code_plan(tensors, site, p, tensors.form(p), family, order)
    if not plan.smaller:
        site.session.check_open()
        return itself(tensors, p, site, exact_bytes)
    buffer, layout, record = plan.encode(tensors, p)
    plan.account(layout, 0, exact_bytes)
    return Kept(reading_of(plan, layout, record), (site.store(tensors, buffer),))


def softmax_rule(reading: Reading, buffer: Array, p: Array, grad: Array, axis: int, samples: range | None) -> Array:
    """Return p (g - Σ p g) and what its noise takes from that on average."""
    gradient = p * (grad - (p * grad).sum(axis, keepdim=True))
    taken = variance(reading, buffer, p, samples)
    return gradient if taken is None else gradient + taken * grad


def log_softmax_rule(reading: Reading, buffer: Array, p: Array, grad: Array, axis: int, samples: range | None) -> Array:
    """Return g - p Σ g."""
    return grad - p * grad.sum(axis, keepdim=True)


Rule = Callable[[Reading, Array, Array, Array, int, range | None], Array]


def gradient(rule: Rule, site: Site, reading: Reading, saved: Sequence[Array], grad: Array, axis: int) -> Array:
    """Return the gradient of what a softmax along ``axis`` was computed of, part by part of the batch."""
    order = reading.order
    tensors, dtype = order.tensors, order.tensors.dtype(grad)
    buffer = site.session.store.get(tensors, saved[0])
    samples, elements = order.rows
    parts = [range(samples)]
    if order.batched and axis:
        decoded_bytes = 4 * samples * elements
        working_bytes = TEMPORARIES * decoded_bytes if tensors.on_host(grad) else 0
        parts = site.session.pieces(samples, decoded_bytes, working_bytes)

    def of_part(part: range | None, own: Array) -> Array:
        p = reading.value(site, [buffer], "float32", part)
        return tensors.cast(rule(reading, buffer, p, tensors.cast(own, "float32"), axis, part), dtype)

    # a row of probabilities sums up to one, and the gradient of its logarithm is about as large
    reading.hand_down(site, 1.0, samples * elements / grad.shape[axis] if rule is log_softmax_rule else None)
    if len(parts) == 1:
        return of_part(None, grad)
    whole = tensors.unfilled(order, dtype, grad)
    for part in parts:
        whole[part.start : part.stop] = of_part(part, grad[part.start : part.stop])
    return whole
