"""Rules of products, and of copies, which hand the code of what they copy on."""

from __future__ import annotations

from functools import partial
from typing import Any

from paddle import Tensor
from paddle.nn import functional as F

from actnn.model.door import DECLINED, Frame, Rule
from actnn.operations.copies import tag_copy
from actnn.operations.einsum import Operand, bilinear, contracted, equation_of
from actnn.operations.kept import keep
from actnn.operations.products import EXTRA, MATMUL_EXTRA
from actnn.paddle.door import activations
from actnn.paddle.door.forms import coded, learns
from actnn.paddle.functions.maps import LinearFunction
from actnn.paddle.functions.products import MULTIPLY, matmul_of, product
from actnn.paddle.tensors import ARRAYS


def multiply(frame: Frame, function: Any, x: Any, y: Any, name: Any = None) -> Any:
    """Return a product element by element, which keeps codes of both factors."""
    if x is y or not (frame.training and coded(x, y) and x.dtype == y.dtype) or x.stop_gradient or y.stop_gradient:
        return DECLINED
    site = frame.site(frame.count("multiply"), extra=EXTRA)
    return product(x, y, MULTIPLY, site, True)


def matmul(
    frame: Frame,
    function: Any,
    x: Any,
    y: Any,
    transpose_x: bool = False,
    transpose_y: bool = False,
    name: Any = None,
) -> Any:
    """Return a product of matrices that keeps codes of the factors which the gradients read."""
    if not coded(x, y) or min(len(x.shape), len(y.shape)) < 2 or x.dtype != y.dtype:
        return DECLINED
    if len(y.shape) == 2 and learns(y) and not (transpose_x or ARRAYS.recorded(y)):
        site = frame.site(frame.count("matmul"))
        site.parameter = id(y)
        kept = keep(ARRAYS, x, site, frame.training)
        return LinearFunction.record(site, x, y.t() if transpose_y else y, None, kept)
    if x.stop_gradient or y.stop_gradient:
        return DECLINED
    site = frame.site(frame.count("matmul"), extra=MATMUL_EXTRA)
    return product(x, y, matmul_of(bool(transpose_x), bool(transpose_y)), site, frame.training)


def einsum(frame: Frame, function: Any, equation: Any, *operands: Any) -> Any:
    """Return an einsum that keeps codes of the operands which the gradients read."""
    if not isinstance(equation, str) or len(operands) < 2 or not coded(*operands):
        return DECLINED
    letters = equation_of(equation, tuple(len(x.shape) for x in operands))
    if letters is None or any(x.stop_gradient for x in operands):
        return DECLINED

    def multiplied(one: Operand, other: Operand, result: str) -> Tensor:
        (first, own), (second, its) = one, other
        maps = any(not ARRAYS.recorded(x) for x in (first, second))
        site = frame.site(frame.count("einsum"), extra=0.0 if maps else MATMUL_EXTRA)
        site.parameter = next((id(x) for x in (first, second) if x.is_leaf), None)
        return product(first, second, bilinear(function, own, its, result), site, frame.training)

    return contracted(letters, operands, multiplied)


def glu(frame: Frame, function: Any, x: Any, axis: int = -1, name: Any = None) -> Any:
    """Return half of a tensor times the sigmoid of the other half, which keeps a code of each."""
    if not (frame.training and coded(x) and learns(x)) or not x.shape or x.shape[axis] % 2:
        return DECLINED
    value, gate = x.chunk(2, axis)
    opened = activations.RULES["sigmoid"](frame, F.sigmoid, gate)
    if opened is DECLINED:
        return DECLINED
    found = multiply(frame, function, value, opened)
    return value * opened if found is DECLINED else found


def copied(frame: Frame, function: Any, x: Any, *arguments: Any, **options: Any) -> Any:
    """Return what a function makes of a tensor whose elements it copies or moves; its code goes along."""
    y = function(x, *arguments, **options)
    if isinstance(y, Tensor) and coded(x, y) and learns(x):
        tag_copy(ARRAYS, x, y, frame.session, partial(repeated, function, arguments, options))
    return y


def repeated(function: Any, arguments: tuple[Any, ...], options: dict[str, Any], x: Tensor) -> Tensor:
    """Return the copy of another tensor of the same shape."""
    y: Tensor = function(x, *arguments, **options)
    return y


COPIES = ("reshape", "transpose", "flatten", "unsqueeze", "squeeze", "cast", "clone", "roll", "expand")
OPERATORS: dict[str, Rule] = {"__mul__": multiply, "__rmul__": multiply, "__matmul__": matmul, "astype": copied}
RULES: dict[str, Rule] = {
    "multiply": multiply,
    **dict.fromkeys(("matmul", "bmm"), matmul),
    "einsum": einsum,
    "glu": glu,
    **dict.fromkeys(COPIES, copied),
}
