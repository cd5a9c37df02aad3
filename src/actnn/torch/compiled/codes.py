"""Operators that make and read codes of values, masks and what is computed of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actnn import kernels
from actnn.format import Part, index_bytes
from actnn.kernels.contract import Backend, Channels, OutputAffine, Smooth
from actnn.torch.compiled.library import FORM, dense, empty_like_order, form_of, key_of, operator
from actnn.torch.tensors import ARRAYS, NAMES, TorchOrder

# in what a BatchNorm leaves for its backward, thresholds come after the inverse deviations
THRESHOLD_ROW = 1
# gamma and beta of a normalisation, what it left, and which elements they belong to
AFFINE = "Tensor? gamma, Tensor? beta, Tensor? saved, int channels, int inner"


def values_for(backend: Backend, order: TorchOrder, x: Tensor) -> Tensor:
    """Return a tensor as kernels take it: dense, and as rows where they want that."""
    x = dense(order, x.detach())
    return x if backend.any_shape else order.flat(x)


def encode_fake(x: Tensor, draw: Tensor, site: int, *form: Any) -> Tensor:
    """Return what a code looks like."""
    return x.new_empty(form_of(*form).layout.nbytes, dtype=torch.uint8)


@operator(f"encode(Tensor x, Tensor draw, int site, {FORM}) -> Tensor", encode_fake)
def encode(x: Tensor, draw: Tensor, site: int, *form: Any) -> Tensor:
    """Return a code of ``x``."""
    code = form_of(*form)
    backend = kernels.select(ARRAYS, x)
    found: Tensor = backend.encode(ARRAYS, values_for(backend, code.order, x), code.layout, key_of(draw, site))
    return found


def decode_fake(code: Tensor, *arguments: Any) -> Tensor:
    """Return what a decoded tensor looks like."""
    *form, dtype = arguments
    return empty_like_order(form_of(*form).order, dtype, code)


@operator(f"decode(Tensor code, {FORM}, ScalarType dtype) -> Tensor", decode_fake)
def decode(code: Tensor, *arguments: Any) -> Tensor:
    """Return what a code stands for."""
    *form, dtype = arguments
    return decoded(code, form, Part.WHOLE, None, dtype)


def decode_output_fake(code: Tensor, *arguments: Any) -> Tensor:
    """Return what the output of a normalisation looks like."""
    return empty_like_order(form_of(*arguments[:6]).order, arguments[-1], code)


@operator(
    f"decode_output(Tensor code, {FORM}, {AFFINE}, bool positive, ScalarType dtype) -> Tensor", decode_output_fake
)
def decode_output(code: Tensor, *arguments: Any) -> Tensor:
    """Return the output of a normalisation, or its positive part, from the code of what it normalised."""
    *_, positive, dtype = arguments
    form = arguments[:6]
    affine = affine_of(form, *arguments[6:11])
    return decoded(code, form, Part.POSITIVE if positive else Part.WHOLE, affine, dtype)


def affine_of(
    form: Any, gamma: Tensor | None, beta: Tensor | None, saved: Tensor | None, channels: int, inner: int
) -> OutputAffine:
    """Return the parameters by which the output of a normalisation reads from a code."""
    threshold = None if form_of(*form).family.affine else saved
    return OutputAffine(Channels(channels, inner), vector(gamma), vector(beta), threshold, THRESHOLD_ROW)


def vector(parameter: Tensor | None) -> Tensor | None:
    """Return a parameter, one number a channel, as kernels read it."""
    return None if parameter is None else ARRAYS.vector(parameter.detach().reshape(-1))


def decoded(code: Tensor, form: Any, part: Part, affine: OutputAffine | None, dtype: torch.dtype) -> Tensor:
    """Return what a code stands for, in the order that it was made of."""
    made = form_of(*form)
    backend = kernels.select(ARRAYS, code)
    out = empty_like_order(made.order, dtype, code)
    room = out if backend.any_shape else made.order.flat(out)
    backend.decode(ARRAYS, code, made.layout, part, NAMES[dtype], affine, None, room)
    return out


def function_fake(code: Tensor, grad: Tensor | None, *arguments: Any) -> Tensor:
    """Return what a function of a decoded tensor looks like."""
    return empty_like_order(form_of(*arguments[:6]).order, arguments[-1], code)


@operator(
    f"decode_function(Tensor code, Tensor? grad, {FORM}, {AFFINE}, bool normalized, int function, ScalarType dtype) "
    "-> Tensor",
    function_fake,
)
def decode_function(code: Tensor, grad: Tensor | None, *arguments: Any) -> Tensor:
    """Return f(x) of what a code stands for or, with a gradient, that gradient times f'(x)."""
    *_, normalized, function, dtype = arguments
    form = arguments[:6]
    made, backend = form_of(*form), kernels.select(ARRAYS, code)
    affine = affine_of(form, *arguments[6:11]) if normalized else None
    out = empty_like_order(made.order, dtype, code)
    room = out if backend.any_shape else made.order.flat(out)
    factor = None if grad is None else values_for(backend, made.order, grad)
    derivative = 0 if grad is None else 1
    backend.decode_function(
        ARRAYS, code, made.layout, Smooth(function), derivative, NAMES[dtype], affine, None, room, factor
    )
    return out


def mask_fake(x: Tensor, channels_last: bool) -> Tensor:
    """Return what one bit an element looks like."""
    return x.new_empty(index_bytes(1, x.numel(), 1), dtype=torch.uint8)


@operator("encode_mask(Tensor x, bool channels_last) -> Tensor", mask_fake)
def encode_mask(x: Tensor, channels_last: bool) -> Tensor:
    """Return one bit for each element of a tensor of booleans."""
    backend, order = kernels.select(ARRAYS, x), TorchOrder(tuple(x.shape), channels_last, batched=False)
    # kernels ask which values are above zero
    found: Tensor = backend.encode_mask(ARRAYS, order.flat(x.to(torch.float16)))
    return found


def decode_mask_fake(mask: Tensor, shape: list[int], channels_last: bool) -> Tensor:
    """Return what a tensor of booleans looks like."""
    return empty_like_order(TorchOrder(tuple(shape), channels_last), torch.bool, mask)


@operator("decode_mask(Tensor mask, int[] shape, bool channels_last) -> Tensor", decode_mask_fake)
def decode_mask(mask: Tensor, shape: list[int], channels_last: bool) -> Tensor:
    """Return the booleans that a mask holds."""
    backend, order = kernels.select(ARRAYS, mask), TorchOrder(tuple(shape), channels_last, batched=False)
    words: Tensor = backend.decode_index(ARRAYS, mask, *order.rows, 1)
    return order.shaped(words.to(torch.bool))


def apply_sides_fake(grad: Tensor, code: Tensor, *form: Any) -> Tensor:
    """Return what a masked gradient looks like."""
    return empty_like_order(form_of(*form).order, grad.dtype, grad)


@operator(f"apply_sides(Tensor grad, Tensor code, {FORM}) -> Tensor", apply_sides_fake)
def apply_sides(grad: Tensor, code: Tensor, *form: Any) -> Tensor:
    """Return a gradient where a code's word lies on the positive side, and zero elsewhere."""
    made, backend = form_of(*form), kernels.select(ARRAYS, grad)
    out = empty_like_order(made.order, grad.dtype, grad)
    room = out if backend.any_shape else made.order.flat(out)
    values = values_for(backend, made.order, grad)
    backend.apply_mask(ARRAYS, code, made.layout, values, 1.0, 0.0, made.order.rows, room)
    return out
