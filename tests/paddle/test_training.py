"""Training as Paddle's users write it: auto_cast, recompute, PyLayer, hooks, static graphs, files of state."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import paddle
import pytest
from frameworks import numbers
from networks import images, small_network
from paddle import nn
from paddle.autograd import PyLayer
from paddle.distributed.fleet.utils import recompute
from paddle_framework import FRAMEWORK
from steps import check_close_gradients, check_equal, close, same

import actnn.paddle as actnn

step, compressed = FRAMEWORK.step, FRAMEWORK.compressed

levels = pytest.mark.parametrize("level", ["O1", "O2"])
halves = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def network() -> nn.Layer:
    return small_network(FRAMEWORK)


@levels
@halves
def test_auto_cast_gives_the_forward_of_the_plain_network(level, dtype):
    plain, x = network(), FRAMEWORK.tensor(images())
    ours, outputs = compressed(plain), []
    for model in (ours, plain):
        with paddle.amp.auto_cast(level=level, dtype=dtype):
            outputs.append(model(x))
    found, expected = outputs
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(FRAMEWORK.array(found), FRAMEWORK.array(expected), rtol=1e-4, atol=1e-4)


@levels
@halves
def test_auto_cast_gives_gradients_near_the_plain_ones(level, dtype):
    plain, x = network(), FRAMEWORK.tensor(images())
    ours = compressed(plain)
    for _ in range(2):
        for model in (ours, plain):
            FRAMEWORK.clear(model)
            with paddle.amp.auto_cast(level=level, dtype=dtype):
                loss = model(x).square().mean()
            loss.backward()
    found, expected = FRAMEWORK.gradients(ours), FRAMEWORK.gradients(plain)
    for name in ("stem.0.weight", "stem.1.weight", "block.conv2.weight", "head.weight"):
        close(found[name], expected[name], 0.05, name)


def test_a_gradient_scaler_trains():
    model, x = compressed(network(), 2), FRAMEWORK.tensor(images(16))
    optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
    scaler, losses = paddle.amp.GradScaler(init_loss_scaling=1024), []
    for _ in range(15):
        with paddle.amp.auto_cast(dtype="bfloat16"):
            loss = FRAMEWORK.cross_entropy(model(x), np.arange(16) % 5)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


class Recomputed(nn.Layer):
    """The small network with its block computed anew in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.network, self.reentrant = network(), reentrant

    def forward(self, x):
        x = self.network.pool(self.network.stem(x))
        x = recompute(self.network.block, x, use_reentrant=self.reentrant)
        return self.network.head(self.network.average(x).flatten(1))


reentrant = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])


@reentrant
@pytest.mark.parametrize("level", ["L2", "L3"])
def test_recompute_gives_the_plain_gradient_at_eight_bits(reentrant, level):
    plain, x = Recomputed(reentrant), images()
    ours = compressed(plain, level=level)
    for _ in range(3):
        found, expected = step(ours, x), step(plain, x)
        weights = {name: value for name, value in expected.gradients.items() if np.linalg.norm(value) > 1e-4}
        check_close_gradients({name: found.gradients[name] for name in weights}, weights, 0.03)


@reentrant
def test_recompute_of_the_whole_model_gives_the_plain_gradient_at_eight_bits(reentrant):
    plain, x = network(), FRAMEWORK.tensor(images(), gradient=True)
    ours = compressed(plain)
    for model in (ours, plain):
        recompute(model, x, use_reentrant=reentrant).square().mean().backward()
    found, expected = FRAMEWORK.gradients(ours), FRAMEWORK.gradients(plain)
    close(found["head.weight"], expected["head.weight"], 0.03)
    close(found["stem.0.weight"], expected["stem.0.weight"], 0.03)


# two ways in which hooks see what autograd saves
hooked = pytest.mark.parametrize(
    "settings", [{"level": "swap"}, {"level": "L3", "memory": "1GB"}], ids=["swap", "memory"]
)


@hooked
def test_layers_before_a_recomputed_block_get_gradients_beside_hooks(settings):
    plain, x = Recomputed(reentrant=True), images()
    found, expected = step(actnn.QModule(plain, **settings), x), step(plain, x)
    assert found.gradients.keys() == expected.gradients.keys()


@hooked
def test_hooks_beside_other_hooks_are_refused_with_the_way_out(settings):
    """Paddle allows one pair of saved-tensor hooks; recompute that is not reentrant needs it."""
    ours = actnn.QModule(Recomputed(reentrant=False), **settings)
    with pytest.raises(actnn.UnsupportedError, match="use_reentrant=True"):
        ours(FRAMEWORK.tensor(images()))


class Doubled(PyLayer):
    """A user's own operation, which overstates its gradient."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


def test_a_users_own_operation_takes_part():
    class Own(nn.Layer):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(300, 64), nn.Linear(64, 5)

        def forward(self, x):
            return self.last(nn.functional.relu(Doubled.apply(self.first(x))))

    plain, x = Own(), numbers((8, 300))
    found, expected = step(compressed(plain), x), step(plain, x)
    check_close_gradients(found.gradients, expected.gradients, 0.01)


def test_hooks_before_and_behind_a_layer_keep_working():
    plain, calls = network(), []
    plain.head.register_forward_pre_hook(lambda *_: calls.append("before"))
    plain.head.register_forward_post_hook(lambda *_: calls.append("behind"))
    step(actnn.QModule(plain, level="L2"), images())
    assert calls == ["before", "behind"]


def test_a_hook_on_an_activation_sees_its_gradient():
    ours, seen = compressed(nn.Sequential(nn.Conv2D(3, 8, 3), nn.BatchNorm2D(8), nn.ReLU())), []
    y = ours[1](ours[0](FRAMEWORK.tensor(images())))
    y.register_hook(lambda gradient: seen.append(gradient.shape))
    ours[2](y).sum().backward()
    assert seen == [y.shape]


@pytest.mark.parametrize("level", ["L0", "L1", "L2", "L3", "swap"])
def test_a_hook_may_change_the_gradient_of_a_layers_output(level):
    plain = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    plain[0].register_forward_post_hook(lambda layer, x, y: (y.register_hook(lambda gradient: gradient * 0), None)[1])
    ours = actnn.QModule(plain, level=level)
    ours(FRAMEWORK.tensor(numbers((64, 16)))).sum().backward()
    assert not ours[0].weight.grad.any()
    assert ours[2].weight.grad.any()


class Numbers(paddle.io.Dataset):
    """Random images and labels."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return numbers((1, 28, 28), index), np.array([index % 10])


def test_paddles_own_training_loop_takes_a_converted_model():
    model = paddle.Model(actnn.QModule(paddle.vision.models.LeNet(), level="L3"))
    model.prepare(paddle.optimizer.Adam(parameters=model.parameters()), nn.CrossEntropyLoss())
    model.fit(Numbers(), batch_size=8, epochs=1, verbose=0)
    assert model.network.report().kept_bytes > 0


def test_a_converted_model_in_evaluation_can_be_saved_as_a_static_graph(tmp_path):
    ours = compressed(nn.Sequential(nn.Conv2D(3, 8, 3), nn.BatchNorm2D(8), nn.ReLU()))
    x = FRAMEWORK.tensor(images())
    spec = [paddle.static.InputSpec([None, *x.shape[1:]])]
    with pytest.raises(actnn.UnsupportedError, match=r"static graph[\s\S]*model\.restore\(\)"):
        paddle.jit.save(ours, str(tmp_path / "training"), input_spec=spec)
    ours.eval()
    paddle.jit.save(ours, str(tmp_path / "model"), input_spec=spec)
    loaded = paddle.jit.load(str(tmp_path / "model"))
    loaded.eval()
    close(loaded(x).numpy(), ours(x).numpy(), 1e-5)


STATIC = {
    "BatchNorm": (lambda: nn.BatchNorm(4, act="relu"), (4, 4, 6, 6)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(4), (4, 4, 6, 6)),
    "Linear": (lambda: nn.Linear(4, 3), (4, 4)),
    "Dropout": (lambda: nn.Dropout(0.5), (4, 4)),
    "MaxPool1D": (lambda: nn.MaxPool1D(2), (4, 4, 8)),
    "MaxPool2D": (lambda: nn.MaxPool2D(2), (4, 4, 8, 8)),
    "AvgPool2D": (lambda: nn.AvgPool2D(2), (4, 4, 8, 8)),
    "Conv2DTranspose": (lambda: nn.Conv2DTranspose(4, 3, 2), (4, 4, 8, 8)),
    "LeakyReLU": (lambda: nn.LeakyReLU(), (4, 4)),
    "ReLU6": (lambda: nn.ReLU6(), (4, 4)),
}


@pytest.mark.parametrize(("build", "shape"), STATIC.values(), ids=STATIC)
def test_every_kind_of_layer_can_be_saved_as_a_static_graph(tmp_path, build, shape):
    ours, x = compressed(nn.Sequential(build())).eval(), FRAMEWORK.tensor(numbers(shape))
    paddle.jit.save(ours, str(tmp_path / "model"), input_spec=[paddle.static.InputSpec([None, *shape[1:]])])
    loaded = paddle.jit.load(str(tmp_path / "model"))
    loaded.eval()
    close(loaded(x).numpy(), ours(x).numpy(), 1e-5)


def test_training_can_be_switched_off_by_a_mode():
    ours = compressed(nn.Sequential(nn.Linear(4, 4)))
    assert not ours.train(False).training
    assert ours.train(True).training


def test_a_model_that_was_compiled_is_refused():
    model = paddle.jit.to_static(nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(actnn.UnsupportedError, match=r"was compiled by paddle\.jit\.to_static"):
        actnn.QModule(model)


# Paddle refuses paddle.grad of some inputs of a PyLayer, whoever wrote it
def test_all_gradients_can_be_asked_for_at_once():
    ours, x = compressed(nn.Conv2D(6, 5, 3)), FRAMEWORK.tensor(numbers((4, 6, 11, 13)), gradient=True)
    found = paddle.grad(ours(x).sum(), [x, ours.weight, ours.bias])
    assert [tuple(gradient.shape) for gradient in found] == [(4, 6, 11, 13), (5, 6, 3, 3), (5,)]
    assert found[-1].tolist() == [4 * 9 * 11] * 5


# Paddle frees what a PyLayer keeps in the first backward, and crashes in the second where nobody stops it
def test_a_second_backward_is_refused_with_the_way_out():
    ours = compressed(nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 5)), 2)
    loss = ours(FRAMEWORK.tensor(numbers((8, 300)))).square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(Exception, match=r"second time.*call backward once"):
        loss.backward()


def test_two_losses_of_one_forward_may_be_added_up():
    plain, x = nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 5)), FRAMEWORK.tensor(numbers((8, 300)))
    ours = compressed(plain)
    for model in (ours, plain):
        y = model(x)
        (y.square().sum() + 3 * y.tanh().sum()).backward()
    check_close_gradients(FRAMEWORK.gradients(ours), FRAMEWORK.gradients(plain), 0.01)


# static graphs


def test_a_static_graph_is_refused_with_the_way_out():
    model = nn.Sequential(nn.Linear(30, 5))
    paddle.enable_static()
    try:
        with pytest.raises(actnn.UnsupportedError, match=r"static graph mode.*disable_static"):
            actnn.QModule(model, level="L2")
    finally:
        paddle.disable_static()
    assert type(model[0]) is nn.Linear


def test_training_that_was_made_static_is_refused_with_the_way_out():
    ours = compressed(nn.Sequential(nn.Linear(30, 5)))

    def forward(x):
        return ours(x)

    static = paddle.jit.to_static(forward, full_graph=True)
    with pytest.raises(Exception, match=r"static graph.*restore"):
        static(FRAMEWORK.tensor(numbers((4, 30))))


@pytest.mark.parametrize("level", ["L9", "l3", 3])
def test_an_unknown_level_is_refused_with_the_levels_that_exist(level):
    with pytest.raises(actnn.ConfigError, match=r"L2"):
        actnn.set_optimization_level(level)


# state


def test_the_keys_of_the_state_are_paddles():
    assert "stem.1._mean" in compressed(network()).state_dict()
    assert "stem.1._variance" in compressed(network()).state_dict()


def test_a_state_goes_through_a_file(tmp_path):
    ours = compressed(network(), 2)
    step(ours, images())
    paddle.save(ours.state_dict(), str(tmp_path / "model.pdparams"))
    plain = FRAMEWORK.initialised(network(), 9)
    missing, unexpected = plain.set_state_dict(paddle.load(str(tmp_path / "model.pdparams")))
    assert (missing, unexpected) == ([], [])
    for name, value in FRAMEWORK.state(plain).items():
        same(value, FRAMEWORK.state(ours)[name], name)


def test_a_wrong_key_is_told_as_by_the_plain_model():
    ours = compressed(network())
    missing, unexpected = ours.set_state_dict({"nonsense": paddle.zeros([1])})
    assert unexpected == ["nonsense"]
    assert "head.weight" in missing


def test_an_optimizer_with_a_schedule_and_clipping_trains():
    ours, x = compressed(network(), 2, level="L3"), FRAMEWORK.tensor(images(16))
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.02, T_max=20)
    clip = nn.ClipGradByGlobalNorm(5.0)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=ours.parameters(), grad_clip=clip)
    losses = []
    for _ in range(12):
        loss = FRAMEWORK.cross_entropy(ours(x), np.arange(16) % 5)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        schedule.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_paddles_own_training_loop_trains():
    model = paddle.Model(compressed(network(), 2, level="L3"))
    optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
    model.prepare(optimizer, nn.CrossEntropyLoss())
    x, target = images(16), (np.arange(16) % 5).reshape(-1, 1)
    losses = [float(np.ravel(model.train_batch([x], [target])[0])[0]) for _ in range(12)]
    assert losses[-1] < 0.9 * losses[0]


def test_equal_runs_are_equal_bit_for_bit():
    plain, x = network(), images()
    first, second = (compressed(plain, 2, 7, level="L3") for _ in range(2))
    for _ in range(3):
        check_equal(step(first, x), step(second, x))


@pytest.mark.parametrize("shape", [[1, 8], [1, 8, 1, 1]], ids=str)
def test_one_value_a_channel_is_normalised_as_by_the_plain_batch_norm(shape):
    norm = nn.BatchNorm1D(8) if len(shape) == 2 else nn.BatchNorm2D(8)
    ours, found = actnn.QModule(deepcopy(norm), level="L3"), []
    for layer in (norm, ours):
        x = paddle.arange(8, dtype="float32").reshape(shape)
        x.stop_gradient = False
        y = layer(x * 1.0)
        (y * y).sum().backward()
        found.append([y, x.grad, layer._mean, layer._variance])
    for plain, ours in zip(*found, strict=True):
        same(ours.numpy(), plain.numpy())
