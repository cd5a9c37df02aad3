"""Operators of normalisations and pooling: each forward also makes a code, each backward reads one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actnn import kernels
from actnn.kernels.contract import BatchNorm, Pool, RowNorm, Rows
from actnn.torch.compiled.codes import values_for, vector
from actnn.torch.compiled.library import FORM, empty_like_order, form_of, key_of, operator
from actnn.torch.tensors import ARRAYS, TorchOrder

Tensors = tuple[Tensor, ...]


def rows_of_saved(form: Any) -> int:
    """Return how many numbers a channel a BatchNorm leaves: the inverse deviation, and a threshold for sides."""
    return 1 if form_of(*form).family.affine else 2


def batch_norm_fake(x: Tensor, gamma: Any, beta: Any, mean: Any, variance: Any, *arguments: Any) -> Tensors:
    """Return what a BatchNorm leaves: output, code, numbers of channels, running mean and variance."""
    form = arguments[4:]
    code, channels = form_of(*form), x.shape[1]
    y = empty_like_order(code.order, x.dtype, x)
    saved = x.new_empty((rows_of_saved(form), channels), dtype=torch.float32)
    averages = [x.new_empty(0) if each is None else torch.empty_like(each) for each in (mean, variance)]
    return y, x.new_empty(code.layout.nbytes, dtype=torch.uint8), saved, *averages


@operator(
    "batch_norm(Tensor x, Tensor? gamma, Tensor? beta, Tensor? mean, Tensor? variance, float momentum, "
    f"float epsilon, Tensor draw, int site, {FORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    batch_norm_fake,
)
def batch_norm(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    momentum: float,
    epsilon: float,
    draw: Tensor,
    site: int,
    *form: Any,
) -> Tensors:
    """Normalise by the batch; return output, code, numbers of channels, and the running statistics to be."""
    code, backend = form_of(*form), kernels.select(ARRAYS, x)
    order = code.order
    y = empty_like_order(order, x.dtype, x)
    saved = x.new_empty((rows_of_saved(form), x.shape[1]), dtype=torch.float32)
    buffer = x.new_empty(code.layout.nbytes, dtype=torch.uint8)
    averages = [x.new_empty(0) if each is None else each.clone() for each in (mean, variance)]
    running = None if mean is None or variance is None else (averages[0], averages[1])
    parameters = BatchNorm(
        order.channels,
        epsilon,
        x.numel() // x.shape[1],
        vector(gamma),
        vector(beta),
        running,
        momentum,
        None,
        saved,
    )
    room = y if backend.any_shape else order.flat(y)
    values = values_for(backend, order, x)
    backend.batch_norm(ARRAYS, values, room, code.layout, parameters, key_of(draw, site), buffer)
    return y, buffer, saved, *averages


def batch_norm_backward_fake(grad: Tensor, code: Tensor, saved: Tensor, *arguments: Any) -> Tensors:
    """Return what the gradients of input, gamma and beta look like."""
    order = form_of(*arguments[3:]).order
    grads = saved.new_empty((2, saved.shape[1]))
    return empty_like_order(order, grad.dtype, grad), grads


@operator(
    "batch_norm_backward(Tensor grad, Tensor code, Tensor saved, Tensor? gamma, float epsilon, bool rectified, "
    f"{FORM}) -> (Tensor, Tensor)",
    batch_norm_backward_fake,
)
def batch_norm_backward(
    grad: Tensor, code: Tensor, saved: Tensor, gamma: Tensor | None, epsilon: float, rectified: bool, *form: Any
) -> Tensors:
    """Return the gradient of a BatchNorm's input, and those of gamma and beta as (2, channels)."""
    made, backend = form_of(*form), kernels.select(ARRAYS, grad)
    order = made.order
    count = grad.numel() // grad.shape[1]
    parameters = BatchNorm(order.channels, epsilon, count, vector(gamma), None, None, 0.0, None, saved)
    grads = saved.new_empty((2, saved.shape[1]))
    grad_x = empty_like_order(order, grad.dtype, grad)
    room = grad_x if backend.any_shape else order.flat(grad_x)
    values = values_for(backend, order, grad)
    backend.batch_norm_backward(ARRAYS, values, code, made.layout, parameters, rectified, False, grads, room)
    return grad_x, grads


def row_norm_fake(x: Tensor, gamma: Any, beta: Any, *arguments: Any) -> Tensors:
    """Return what a normalisation over rows leaves: output, code and inverse deviations."""
    width, form = arguments[0], arguments[6:]
    code = form_of(*form)
    y = empty_like_order(code.order, x.dtype, x)
    inverse = x.new_empty(x.numel() // max(1, width), dtype=torch.float32)
    return y, x.new_empty(code.layout.nbytes, dtype=torch.uint8), inverse


@operator(
    "row_norm(Tensor x, Tensor? gamma, Tensor? beta, int width, int parameters, int inner, float epsilon, "
    f"Tensor draw, int site, {FORM}) -> (Tensor, Tensor, Tensor)",
    row_norm_fake,
)
def row_norm(
    x: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    width: int,
    parameters: int,
    inner: int,
    epsilon: float,
    draw: Tensor,
    site: int,
    *form: Any,
) -> Tensors:
    """Normalise rows; return output, code and the inverse deviations of rows."""
    code, backend = form_of(*form), kernels.select(ARRAYS, x)
    order = code.order
    y = empty_like_order(order, x.dtype, x)
    buffer = x.new_empty(code.layout.nbytes, dtype=torch.uint8)
    inverse = x.new_empty(x.numel() // max(1, width), dtype=torch.float32)
    call = row_call(gamma, beta, (width, parameters, inner), epsilon, inverse)
    room = y if backend.any_shape else order.flat(y)
    backend.row_norm(ARRAYS, values_for(backend, order, x), room, code.layout, call, key_of(draw, site), buffer)
    return y, buffer, inverse


def row_call(
    gamma: Tensor | None, beta: Tensor | None, rows: tuple[int, int, int], epsilon: float, inverse: Tensor
) -> RowNorm:
    """Return one call of a normalisation over rows as kernels take it."""
    return RowNorm(Rows(*rows), epsilon, True, vector(gamma), vector(beta), inverse)


def row_norm_backward_fake(grad: Tensor, code: Tensor, inverse: Tensor, gamma: Any, *arguments: Any) -> Tensors:
    """Return what the gradients of input, gamma and beta look like."""
    parameters, form = arguments[1], arguments[3:]
    return empty_like_order(form_of(*form).order, grad.dtype, grad), inverse.new_empty((2, parameters))


@operator(
    "row_norm_backward(Tensor grad, Tensor code, Tensor inverse, Tensor? gamma, int width, int parameters, int inner, "
    f"{FORM}) -> (Tensor, Tensor)",
    row_norm_backward_fake,
)
def row_norm_backward(
    grad: Tensor,
    code: Tensor,
    inverse: Tensor,
    gamma: Tensor | None,
    width: int,
    parameters: int,
    inner: int,
    *form: Any,
) -> Tensors:
    """Return the gradient of what was normalised, and those of gamma and beta as (2, parameters)."""
    made, backend = form_of(*form), kernels.select(ARRAYS, grad)
    order = made.order
    grads = inverse.new_empty((2, parameters))
    grad_x = empty_like_order(order, grad.dtype, grad)
    room = grad_x if backend.any_shape else order.flat(grad_x)
    call = row_call(gamma, None, (width, parameters, inner), 0.0, inverse)
    values = values_for(backend, order, grad)
    backend.row_norm_backward(ARRAYS, values, code, made.layout, call, grads, room)
    return grad_x, grads


POOL = "int[] shape, bool channels_last, int[] output, int[] kernel, int[] stride, int[] padding, int[] dilation"


def pool_of(
    shape: list[int],
    channels_last: bool,
    output: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> tuple[TorchOrder, TorchOrder, Pool]:
    """Return the orders of a pooling's input and output, and its geometry."""
    samples, channels, *space = shape
    windows = tuple(output), tuple(kernel), tuple(stride), tuple(padding), tuple(dilation)
    pool = Pool(samples, channels, tuple(space), *windows, channels_last)
    result = TorchOrder((samples, channels, *output), channels_last)
    return TorchOrder(tuple(shape), channels_last), result, pool


def max_pool_fake(x: Tensor, *geometry: Any) -> Tensors:
    """Return what a max pooling leaves: maxima and their positions."""
    _, result, pool = pool_of(*geometry)
    return empty_like_order(result, x.dtype, x), x.new_empty(pool.nbytes, dtype=torch.uint8)


@operator(f"max_pool(Tensor x, {POOL}) -> (Tensor, Tensor)", max_pool_fake)
def max_pool(x: Tensor, *geometry: Any) -> Tensors:
    """Return the maxima, and the code of their positions within their windows."""
    order, result, pool = pool_of(*geometry)
    backend = kernels.select(ARRAYS, x)
    y = empty_like_order(result, x.dtype, x)
    room = y if backend.any_shape else result.flat(y)
    return y, backend.max_pool(ARRAYS, values_for(backend, order, x), room, pool)


def max_pool_backward_fake(grad: Tensor, positions: Tensor, *geometry: Any) -> Tensor:
    """Return what the gradient of pooled values looks like."""
    return empty_like_order(pool_of(*geometry)[0], grad.dtype, grad)


@operator(f"max_pool_backward(Tensor grad, Tensor positions, {POOL}) -> Tensor", max_pool_backward_fake)
def max_pool_backward(grad: Tensor, positions: Tensor, *geometry: Any) -> Tensor:
    """Return the gradient of pooled values."""
    order, result, pool = pool_of(*geometry)
    backend = kernels.select(ARRAYS, grad)
    out = empty_like_order(order, grad.dtype, grad)
    room = out if backend.any_shape else order.flat(out)
    backend.max_pool_backward(ARRAYS, positions, values_for(backend, result, grad), pool, room)
    return out
