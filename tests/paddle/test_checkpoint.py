"""actnn.save and actnn.load in Paddle: what they bring back, and what they refuse."""

from __future__ import annotations

import pickle
import random

import numpy as np
import paddle
import pytest
from paddle import nn

import actnn
from actnn.errors import ConfigError, SessionError
from actnn.paddle import archive


def model() -> nn.Layer:
    paddle.seed(0)
    layers = nn.Linear(300, 4), nn.BatchNorm1D(4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 2)
    return actnn.QModule(nn.Sequential(*layers), level="L3")


def training() -> tuple[nn.Layer, paddle.optimizer.Optimizer, paddle.optimizer.lr.LRScheduler]:
    net = model()
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.01, 10)
    return net, paddle.optimizer.AdamW(schedule, parameters=net.parameters()), schedule


def train(net: nn.Layer, optimizer: paddle.optimizer.Optimizer, schedule: object, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.clear_grad()
        net(paddle.randn([8, 300])).square().sum().backward()
        optimizer.step()
        schedule.step()


class Scaler:
    """As Paddle's are, which do nothing on the host."""

    def __init__(self, scale: float) -> None:
        self.scale = paddle.to_tensor([float(scale)])

    def state_dict(self) -> dict[str, object]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, paddle.Tensor]) -> None:
        self.scale = state["scale"]


def test_training_goes_on_bit_for_bit_also_where_parameters_have_other_names(tmp_path):
    whole = training()
    train(*whole)
    actnn.save(tmp_path / "run", whole[0], optimizer=whole[1], schedule=whole[2], epoch=3)
    train(*whole)
    parts = training()
    assert parts[0].parameters()[0].name != whole[0].parameters()[0].name
    assert actnn.load(tmp_path / "run", parts[0], optimizer=parts[1], schedule=parts[2]) == {"epoch": 3}
    train(*parts)
    assert whole[2].last_lr == parts[2].last_lr
    expected, found = whole[0].state_dict(), parts[0].state_dict()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert np.array_equal(value.numpy(), found[name].numpy()), name


def test_generators_of_paddle_numpy_and_python_go_on_where_they_were(tmp_path):
    net = model()
    actnn.save(tmp_path / "run", net)
    drawn = paddle.rand([1]).item(), np.random.rand(), random.random()
    actnn.load(tmp_path / "run", net)
    assert (paddle.rand([1]).item(), np.random.rand(), random.random()) == drawn


def test_a_scaler_is_saved_too(tmp_path):
    net = model()
    actnn.save(tmp_path / "run", net, scaler=Scaler(8))
    other = Scaler(2)
    actnn.load(tmp_path / "run", net, scaler=other)
    assert other.scale.item() == 8


def test_a_file_keeps_tensors_of_all_kinds_and_plain_data(tmp_path):
    value = {"a": paddle.arange(3), "b": [paddle.ones([2], "bfloat16"), (1, 2.5, None, "x")], 3: {"c": True}}
    (tmp_path / "file").write_bytes(archive.packed(value))
    found = archive.unpacked(tmp_path / "file")
    assert found["a"].dtype == paddle.int64
    assert found["a"].tolist() == [0, 1, 2]
    half, plain = found["b"]
    assert half.dtype == paddle.bfloat16
    assert half.astype("float32").tolist() == [1, 1]
    assert plain == (1, 2.5, None, "x")
    assert found[3] == {"c": True}


def test_what_a_checkpoint_cannot_hold_is_named_and_leaves_the_one_before(tmp_path):
    net = model()
    actnn.save(tmp_path / "run", net, epoch=1)
    with pytest.raises(ConfigError, match=r"\['rest'\]\['epoch'\] is a function"):
        actnn.save(tmp_path / "run", net, epoch=lambda: 2)
    assert actnn.load(tmp_path / "run", net) == {"epoch": 1}


def test_the_checkpoint_of_another_model_is_refused(tmp_path):
    actnn.save(tmp_path / "run", model())
    with pytest.raises(SessionError, match=r"'0\.bias' is not in both"):
        actnn.load(tmp_path / "run", actnn.QModule(nn.Linear(3, 4)))
    other = actnn.QModule(nn.Sequential(nn.Linear(30, 4), *(layer for layer in model().restore()[1:])))
    with pytest.raises(SessionError, match=r"'0.weight' has the shape \[300, 4\] there, and \[30, 4\] here"):
        actnn.load(tmp_path / "run", other)


@pytest.mark.parametrize("content", [b"", b"nothing", pickle.dumps({"format": 1})], ids=["empty", "text", "pickle"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(SessionError, match="cannot be read"):
        actnn.load(tmp_path / "run", model())


def test_an_archive_of_something_else_is_refused(tmp_path):
    (tmp_path / "run").write_bytes(archive.packed({"weights": 1}))
    with pytest.raises(SessionError, match=r"not a checkpoint of actnn\.save"):
        actnn.load(tmp_path / "run", model())
