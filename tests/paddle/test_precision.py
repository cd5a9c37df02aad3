"""Half precision on the host, where Paddle itself has few operations."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

import actnn
from actnn.paddle.functions.maps import added

# plain Paddle drops no slices of float16 on the host
DROPPED = [("float16", None), ("bfloat16", None), ("bfloat16", 0), ("bfloat16", [0, 1])]


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("mode", ["upscale_in_train", "downscale_in_infer"])
@pytest.mark.parametrize(("dtype", "axis"), DROPPED)
def test_a_dropout_of_half_precision_equals_the_plain_one(dtype, axis, mode, probability):
    def gradient(model: nn.Layer) -> tuple[np.ndarray, np.ndarray]:
        paddle.seed(3)
        values, weights = (paddle.randn([64, 33]).astype(dtype) for _ in range(2))
        values.stop_gradient = False
        y = model(values)
        assert y.dtype == values.dtype
        return tuple(x.astype("float32").numpy() for x in (y, *paddle.grad(y, values, weights)))

    def dropout() -> nn.Layer:
        return nn.Sequential(nn.Dropout(probability, axis=axis, mode=mode))

    for found, expected in zip(gradient(actnn.QModule(dropout())), gradient(dropout()), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_sum_over_parts_of_the_batch_loses_no_small_part(dtype):
    total = None
    for part in (4096.0, *[1.0] * 8):
        total = added(total, paddle.full([3], part, dtype))
    # in half precision each sum would round to 4096
    assert total.tolist() == [4104.0] * 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_dropout_in_place_leaves_its_result_in_its_input(dtype):
    model = actnn.QModule(nn.Sequential(nn.Dropout(0.5)))
    model[0].inplace = True
    leaf = paddle.ones([64, 33]).astype(dtype)
    leaf.stop_gradient = False
    x = leaf.clone()
    y = model(x)
    values = y.astype("float32").numpy()
    assert set(np.unique(values)) == {0.0, 2.0}
    np.testing.assert_array_equal(x.astype("float32").numpy(), values)
    (gradient,) = paddle.grad(y, leaf, paddle.ones_like(y))
    np.testing.assert_array_equal(gradient.astype("float32").numpy(), values)
