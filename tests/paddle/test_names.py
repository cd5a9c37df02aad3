"""Names: ``import actnn.paddle as actnn`` offers what the published port promised, in Paddle's spelling and torch's."""

from __future__ import annotations

import subprocess
import sys

import paddle
import pytest
from frameworks import numbers
from paddle import nn
from paddle_framework import FRAMEWORK
from steps import close

import actnn as common
import actnn.paddle as actnn

SPELLINGS = {
    "Conv1D": ("QConv1D", "QConv1d", "qconv1d"),
    "Conv2D": ("QConv2D", "QConv2d", "qconv2d"),
    "Conv3D": ("QConv3D", "QConv3d", "qconv3d"),
    "Conv1DTranspose": ("QConv1DTranspose", "QConvTranspose1d", "qconv_transpose1d"),
    "Conv2DTranspose": ("QConv2DTranspose", "QConvTranspose2d", "qconv_transpose2d"),
    "Conv3DTranspose": ("QConv3DTranspose", "QConvTranspose3d", "qconv_transpose3d"),
    "BatchNorm1D": ("QBatchNorm1D", "QBatchNorm1d", "qbatch_norm1d"),
    "BatchNorm2D": ("QBatchNorm2D", "QBatchNorm2d", "qbatch_norm2d"),
    "BatchNorm3D": ("QBatchNorm3D", "QBatchNorm3d", "qbatch_norm3d"),
    "SyncBatchNorm": ("QSyncBatchNorm", "qsync_batch_norm"),
    "Linear": ("QLinear", "qlinear"),
    "ReLU": ("QReLU", "qrelu"),
    "Dropout": ("QDropout", "qdropout"),
    "MaxPool2D": ("QMaxPool2D", "QMaxPool2d", "qmax_pool2d"),
    "AvgPool2D": ("QAvgPool2D", "QAvgPool2d", "qavg_pool2d"),
    "LeakyReLU": ("QLeakyReLU",),
    "BatchNorm": ("QBatchNorm",),
}


@pytest.mark.parametrize(("plain", "names"), SPELLINGS.items(), ids=SPELLINGS)
def test_every_spelling_names_the_layer(plain, names):
    for name in names:
        assert name in actnn.__all__
        assert issubclass(getattr(actnn, names[0]), getattr(nn, plain))


@pytest.mark.parametrize("name", ["QModule", "config", "set_optimization_level", "QScheme", "QBNScheme", "verify"])
def test_the_rest_of_the_surface_is_there(name):
    assert name in actnn.__all__
    assert getattr(actnn, name) is not None


def test_settings_and_errors_are_those_of_all_front_ends():
    assert actnn.config is common.config
    assert actnn.ConfigError is common.ConfigError
    assert actnn.set_optimization_level is common.set_optimization_level


def test_the_common_surface_converts_a_paddle_model():
    model = common.QModule(nn.Sequential(nn.Linear(300, 5)), level="L2")
    assert type(model[0]) is actnn.QLinear
    assert isinstance(model, actnn.QModule)
    assert isinstance(model, common.QModule)


def test_a_network_by_hand_in_the_ports_spelling_trains():
    actnn.set_optimization_level("L3")
    model = nn.Sequential(
        actnn.qconv2d(3, 8, 3, padding=1), actnn.qbatch_norm2d(8), actnn.qrelu(), actnn.qmax_pool2d(2),
        nn.Flatten(), actnn.qdropout(0.1), actnn.qlinear(8 * 64, 5),
    )  # fmt: skip
    found = FRAMEWORK.step(model, numbers((4, 3, 16, 16)))
    assert {"0.weight", "1.weight", "6.weight"} <= found.gradients.keys()


def test_a_function_takes_its_input_by_either_name():
    x = FRAMEWORK.tensor(numbers((4, 300)), gradient=True)
    for name in ("x", "input"):
        assert actnn.qdropout(**{name: x}, p=0.5).shape == x.shape


def test_a_batch_norm_function_in_evaluation_may_use_the_batch():
    x = FRAMEWORK.tensor(numbers((16, 4)) + 3, gradient=True)
    found, expected = (
        norm(x, paddle.zeros([4]), paddle.ones([4]), training=False, use_global_stats=False)
        for norm in (actnn.qsync_batch_norm, nn.functional.batch_norm)
    )
    close(found.numpy(), expected.numpy(), 1e-5)


ONE_STEP = """
def train_torch():
    import torch, actnn
    model = actnn.QModule(torch.nn.Sequential(torch.nn.Linear(300, 5), torch.nn.ReLU()), level="L3")
    model(torch.randn(8, 300)).sum().backward()
    assert model.report().kept_bytes > 0

def train_paddle():
    import paddle, actnn
    model = actnn.QModule(paddle.nn.Sequential(paddle.nn.Linear(300, 5), paddle.nn.ReLU()), level="L3")
    model(paddle.randn([8, 300])).sum().backward()
    assert model.report().kept_bytes > 0

"""
ORDERS = {
    "torch first": "import torch, paddle, actnn",
    "paddle first": "import paddle, torch, actnn",
    "actnn first": "import actnn, paddle, torch",
    "front ends, torch first": "import actnn.torch, actnn.paddle",
    "front ends, paddle first": "import actnn.paddle, actnn.torch",
}


def run(program: str) -> str:
    """Run a program in a process of its own; return what it printed."""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished.stdout


@pytest.mark.parametrize("imports", ORDERS.values(), ids=ORDERS)
def test_both_frameworks_train_in_one_process_in_either_order(imports):
    pytest.importorskip("torch")
    both = "train_torch(); train_paddle(); train_torch(); print('trained')"
    assert "trained" in run(f"{imports}\n{ONE_STEP}\n{both}")


def test_the_front_end_of_paddle_does_not_load_torch():
    program = f"{ONE_STEP}\ntrain_paddle()\nimport sys; print('torch' in sys.modules)"
    assert run(program).strip().endswith("False")


def test_the_front_end_of_torch_does_not_load_paddle():
    pytest.importorskip("torch")
    program = f"{ONE_STEP}\ntrain_torch()\nimport sys; print('paddle' in sys.modules)"
    assert run(program).strip().endswith("False")
