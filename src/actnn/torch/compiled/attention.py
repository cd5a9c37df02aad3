"""The operator of an attention's backward, which computes attention anew from codes of its inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actnn import kernels
from actnn.format import Part
from actnn.operations.attention import LEAST_VARIANCE
from actnn.operations.kept import Reading
from actnn.operations.variances import mean_variance, variance
from actnn.torch.compiled.codes import decoded
from actnn.torch.compiled.library import form_of, key_of, operator
from actnn.torch.functions.attention import Options, Recomputation
from actnn.torch.tensors import ARRAYS

# queries, keys and values
INPUTS = 3
# of the batch, in which noise is measured: enough numbers for a mean, of values that do not differ in kind
MEASURED = 1


def attention_backward_fake(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> Any:
    """Return what the gradients of queries, keys and values look like."""
    return tuple(grad.new_empty(form_of(*form).shape).transpose(1, 2) for form in forms(arguments))


def forms(arguments: Any) -> list[tuple[Any, ...]]:
    """Return the forms of the three codes."""
    *shapes, bits, family, rounding = arguments[: INPUTS + 3]
    return [(shape, False, True, family, width, rounding) for shape, width in zip(shapes, bits, strict=True)]


@operator(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, int[] query_shape, int[] key_shape, "
    "int[] value_shape, int[] bits, str family, int rounding, Tensor? mask, bool is_causal, float? scale, "
    "Tensor draw, int site) -> (Tensor, Tensor, Tensor)",
    attention_backward_fake,
)
def attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> Any:
    """Return the gradients of queries, keys and values, freed of the bias that noise in the logits gives them.

    Codes are of (samples, positions, heads, width), where heads lie side by side.
    """
    mask, is_causal, scale, draw, site = arguments[INPUTS + 3 :]
    own = forms(arguments)
    codes = (query, key, value)
    beside = [decoded(code, form, Part.WHOLE, None, grad.dtype) for code, form in zip(codes, own, strict=True)]
    readings = [reading_of(code, form) for code, form in zip(codes, own, strict=True)]
    # noise is drawn from what is unique to this call
    options = Options(0.0, is_causal, scale, enable_gqa=False)
    again = Recomputation(options, (True, True, True, False), None, grad.device, seed(draw, site))
    factor = beside[0].shape[-1] ** -0.5 if scale is None else scale
    variances = None
    if noise_of_logits(readings, codes, beside, factor) > LEAST_VARIANCE:
        found = [variance(readings[place], codes[place], beside[place]) for place in range(2)]
        variances = [None if each is None else each.transpose(1, 2) for each in found]
    inputs = [each.transpose(1, 2) for each in beside]
    gradients = again.gradients((inputs[0], inputs[1], inputs[2]), mask, grad, variances)
    # torch's own kernel leaves them so
    return tuple(each.transpose(1, 2).contiguous().transpose(1, 2) for each in gradients[:INPUTS] if each is not None)


def seed(draw: Tensor, site: int) -> int:
    """Return a number from which the noise of one call is drawn."""
    return key_of(draw, site)[0]


def reading_of(code: Tensor, form: tuple[Any, ...]) -> Reading:
    """Return how a code is read, of which only the steps of its levels are asked here."""
    made = form_of(*form)
    return Reading(made.order, kernels.select(ARRAYS, code), made.layout)


def noise_of_logits(readings: list[Reading], codes: tuple[Tensor, ...], beside: list[Tensor], factor: float) -> float:
    """Return the variance of noise in the products of queries and keys, those of a few samples."""
    noise = 0.0
    for place, other in ((0, beside[1]), (1, beside[0])):
        own = mean_variance(readings[place], codes[place], beside[place][:MEASURED], range(MEASURED))
        values = other[:MEASURED].to(torch.float32).reshape(-1)
        squared_length = float(values @ values) / max(1, values.numel()) * other.shape[-1]
        if own is not None:
            noise += factor * factor * float(own) * squared_length
    return noise
