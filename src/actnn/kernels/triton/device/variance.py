"""The variance of what a code decodes to, as ``reference.variance`` has it."""

import triton
import triton.language as tl

from actnn.kernels.triton.device.kernel import AFFINE, CUBIC, DITHER, LINEAR, ROOT, STOCHASTIC

TWELFTH, SIXTH = tl.constexpr(1 / 12), tl.constexpr(1 / 6)


@triton.jit
def noise_terms(step, reach, FORM: tl.constexpr):
    """Return (a, b, c) of groups: a + b u² + c u⁴ is the variance of what is decoded by u."""
    constant, quadratic, quartic = step * step * 0.0, 0.0 * step, 0.0 * step
    if FORM.rounding == STOCHASTIC:
        constant = step * step * SIXTH
    elif FORM.rounding == DITHER:
        half = step * 0.5
        square = half * half
        if FORM.curve == CUBIC:
            scale = reach * reach
            constant = square * ((square * (31 / 21) - 14 / 15) * square + 1 / 3) * scale
            quadratic = (square * 2.0) * (1.0 - square * 3.0) * scale
            quartic = (square * 3.0) * scale
        elif FORM.curve == ROOT:
            constant, quadratic = (square * square) * (-16 / 45), square * (4 / 3)
        else:
            constant = step * step * TWELFTH
    return constant, quadratic, quartic


@triton.jit
def variance_of(u, words, below, above, reach, negative, FORM: tl.constexpr):
    """Return the variance of decoded values from what is coded of them; steps and reaches have the shape of words."""
    constant, quadratic, quartic = noise_terms(above, reach, FORM)
    if FORM.kind != AFFINE:
        other, other_quadratic, other_quartic = noise_terms(below, reach, FORM)
        side = words >= negative
        constant = tl.where(side, constant, other)
        quadratic, quartic = tl.where(side, quadratic, other_quadratic), tl.where(side, quartic, other_quartic)
    if FORM.curve == LINEAR:
        return constant + 0.0 * words.to(tl.float32)
    else:
        square = u * u
        return (quartic * square + quadratic) * square + constant
