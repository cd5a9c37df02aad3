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
    before = x.inplace_version
    y = model(x)
    # whoever holds a code of the tensor sees that it is another now
    assert x.inplace_version > before
    values = y.astype("float32").numpy()
    assert set(np.unique(values)) == {0.0, 2.0}
    np.testing.assert_array_equal(x.astype("float32").numpy(), values)
    (gradient,) = paddle.grad(y, leaf, paddle.ones_like(y))
    np.testing.assert_array_equal(gradient.astype("float32").numpy(), values)


def test_a_pooling_without_a_kernel_works_in_half_precision():
    x = paddle.randn([2, 4, 5, 6, 7]).astype("float16")
    x.stop_gradient = False
    y = actnn.QModule(nn.MaxPool3D(2), level="L3")(x)
    np.testing.assert_array_equal(y.numpy(), nn.MaxPool3D(2)(x).numpy())
    (gradient,) = paddle.grad(y, x, paddle.ones_like(y))
    assert gradient.dtype == x.dtype
    assert gradient.astype("float32").sum().item() == y.size


def test_a_gradient_has_the_type_of_its_tensor_where_autocast_changes_that_of_the_output(monkeypatch):
    """On the host Paddle's auto_cast changes nothing; this stands in for it."""
    exact = nn.functional.relu
    monkeypatch.setattr(nn.functional, "relu", lambda x: exact(x).astype("bfloat16"))
    x = paddle.randn([4, 300])
    x.stop_gradient = False
    y = actnn.QModule(nn.Sequential(nn.ReLU()), level="L3")(x)
    assert y.dtype == paddle.bfloat16
    y.sum().backward()
    assert x.grad.dtype == x.dtype


@pytest.mark.parametrize("values", [[float("inf"), float("nan"), 1.0] * 4, 1.5], ids=["not finite", "no axes"])
def test_what_is_dropped_is_zero_whatever_it_was(values):
    def dropped(model: nn.Layer) -> np.ndarray:
        paddle.seed(3)
        x = paddle.to_tensor(values)
        x.stop_gradient = False
        return model(x).numpy()

    found, expected = dropped(actnn.QModule(nn.Sequential(nn.Dropout(0.5)), level="L2")), dropped(nn.Dropout(0.5))
    np.testing.assert_array_equal(found, expected)
