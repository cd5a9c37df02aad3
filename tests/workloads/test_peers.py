"""Methods of others as contestants: what their gradients are, and that they keep less."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from actnn.errors import UnsupportedError
from actnn.torch.memory import KeptBytes
from actnn.workloads import models, peers
from actnn.workloads.frameworks import trainee
from actnn.workloads.peers import PEERS, compile_budget, division, few_bits, gact, mesa, rematerialization
from actnn.workloads.peers.codes import GroupCodes
from actnn.workloads.peers.lossless import MaskedReLU, PositionedMaxPool
from actnn.workloads.peers.preactivations import Preactivation
from actnn.workloads.task import Task

LOSSLESS = ("dtr", "checkpoint-whole", "checkpoint-selective", "save-on-cpu")
STOCHASTIC = ("original", "gact", "division")


class Mlp(nn.Module):
    """A block of a transformer's kind."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.first, self.act = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU()
        self.second = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.second(self.act(self.first(self.norm(x))))


class EncoderBlock(Mlp):
    """A block by the name of torchvision's."""


class Tokens(nn.Module):
    """Two blocks on tokens and a classifier."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(EncoderBlock(32), EncoderBlock(32))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.blocks(x).mean(1))


def resnet():
    torch.manual_seed(0)
    return models.build("resnet18", classes=10).train()


def tokens():
    torch.manual_seed(0)
    return Tokens().train()


BATCHES = {resnet: (4, 3, 32, 32), tokens: (8, 24, 32)}


def batch(build):
    torch.manual_seed(1)
    return torch.randn(BATCHES[build]), torch.randint(10, BATCHES[build][:1])


def gradient(model, images, labels):
    model.zero_grad()
    functional.cross_entropy(model(images), labels).backward()
    return torch.cat([own.grad.flatten() for own in model.parameters()])


def kept(model, images):
    with KeptBytes(model) as counted:
        out = model(images)
    del out
    return counted.total


def contestant(name, build):
    model = PEERS[name].applied(build())
    images, labels = batch(build)
    if peers.is_to_prepare(model):
        peers.prepare(model, lambda: functional.cross_entropy(model(images[:2]), labels[:2]).backward())
    return model


def relative(found, exact):
    return float((found - exact).square().sum() / exact.square().sum())


@pytest.mark.parametrize("build", BATCHES)
@pytest.mark.parametrize("name", LOSSLESS)
def test_the_gradient_of_a_lossless_method_is_the_exact_one(name, build):
    exact = gradient(build(), *batch(build))
    assert relative(gradient(contestant(name, build), *batch(build)), exact) < 1e-10


@pytest.mark.parametrize("build", BATCHES)
@pytest.mark.parametrize("name", ["dtr", "checkpoint-whole", "checkpoint-selective", "mesa", "division"])
def test_a_method_keeps_less_than_exact_training_and_another_step_keeps_as_much(name, build):
    images, labels = batch(build)
    model = contestant(name, build)
    first = kept(model, images)
    gradient(model, images, labels)
    assert first < 0.95 * kept(build(), images)
    assert kept(model, images) == first


@pytest.mark.parametrize("name", STOCHASTIC)
def test_the_mean_of_many_gradients_of_a_stochastic_method_comes_nearer(name):
    images, labels = batch(tokens)
    exact = gradient(tokens(), images, labels)
    model = contestant(name, tokens)
    drawn = torch.stack([gradient(model, images, labels) for _ in range(48)])
    single = sum(relative(each, exact) for each in drawn) / len(drawn)
    # 1 / 48 of it where there is no bias at all; a GELU of a coded input has a little
    assert relative(drawn.mean(0), exact) < single / 8


@pytest.mark.parametrize(("name", "build", "error"), [("mesa", tokens, 1e-3), ("few-bits", tokens, 0.05)])
def test_a_method_that_rounds_to_the_nearest_is_near_the_exact_gradient_and_equal_each_time(name, build, error):
    images, labels = batch(build)
    model = contestant(name, build)
    first = gradient(model, images, labels)
    assert 0 < relative(first, gradient(build(), images, labels)) < error
    if name == "few-bits":
        assert torch.equal(first, gradient(model, images, labels))


def test_blpa_loses_little_at_8_bits_and_more_at_4_and_keeps_a_quarter_and_less():
    images, labels = batch(resnet)
    exact, whole = gradient(resnet(), images, labels), kept(resnet(), images)
    errors = {name: relative(gradient(contestant(name, resnet), images, labels), exact) for name in ("blpa4", "blpa8")}
    assert 0 < errors["blpa8"] < 0.01
    assert errors["blpa8"] < errors["blpa4"] < 0.2
    sizes = {name: kept(contestant(name, resnet), images) for name in errors}
    assert sizes["blpa4"] < 0.7 * sizes["blpa8"] < 0.7 * 0.3 * whole


def test_blpa_computes_forward_exactly_and_follows_running_statistics():
    images, _ = batch(resnet)
    plain, model = resnet(), contestant("blpa4", resnet)
    assert torch.equal(plain(images), model(images))
    for name, value in plain.named_buffers():
        assert torch.equal(value, dict(model.named_buffers())[name]), name
    assert torch.equal(plain.eval()(images), model.eval()(images))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_coded_preactivation_keeps_signs_and_is_half_a_step_off_at_most(bits):
    torch.manual_seed(0)
    x = torch.randn(8, 5, 7, 3) * torch.tensor([0.1, 1.0, 3.0, 10.0, 0.5])[:, None, None]
    deviation, mean = torch.std_mean(x, (0, 2, 3))
    code = Preactivation.of(x, mean, deviation, bits)
    decoded = code.decoded()
    assert torch.equal(decoded > 0, x >= 0)
    within = (x - mean[:, None, None]).abs() < 2.5 * deviation[:, None, None]
    assert bool(((decoded - x).abs() <= 0.501 * code.step[:, None, None])[within].all())
    assert code.words.nbytes == x.numel() * bits // 8


def test_blpa_says_so_where_there_is_no_batch_norm():
    with pytest.raises(UnsupportedError, match="no BatchNorm2d"):
        PEERS["blpa4"].applied(tokens())


def test_few_bits_says_so_where_there_is_no_smooth_function():
    with pytest.raises(UnsupportedError, match="few-bits has nothing to do"):
        PEERS["few-bits"].applied(resnet())


def test_the_best_steps_of_a_step_function_are_its_own():
    values = torch.tensor([0.0] * 5 + [2.0] * 3 + [1.0] * 7 + [4.0] * 2).double().numpy()
    assert few_bits.best_steps(values, 4) == ([0, 5, 8, 15], [0.0, 2.0, 1.0, 4.0])


def test_more_levels_are_nearer_to_a_derivative():
    x = torch.linspace(-4, 4, 4001, requires_grad=True)
    (slope,) = torch.autograd.grad(functional.gelu(x).sum(), x)
    errors = []
    for bits in (1, 2, 3, 4):
        limits, levels = few_bits.steps_of(functional.gelu, bits)
        errors.append(float((levels[torch.bucketize(x, limits)] - slope).square().mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.003


def test_groups_codes_are_unbiased_and_as_small_as_their_bits():
    torch.manual_seed(0)
    x, codes = torch.randn(4, 512), GroupCodes(3)
    drawn = []
    for _ in range(400):
        code, decode = codes.encode(x, 2)
        drawn.append(decode(code))
    error = torch.stack(drawn).mean(0) - x
    assert code.nbytes == 16 + 4 * 2 * 4 + 4 * 512 * 2 // 8
    assert float(error.abs().max()) < 6 * float(torch.stack(drawn).std(0).max()) / 20


def test_gact_gives_more_bits_to_what_is_more_sensitive_within_its_average():
    elements = {0: 100, 1: 100, 2: 800}
    widths = gact.allocated({0: 100.0, 1: 1.0, 2: 1.0}, elements, bits=3)
    assert widths[0] >= widths[1] > widths[2]
    assert 0.9 * 3 * 1000 < sum(widths[number] * elements[number] for number in elements) <= 3 * 1000


def test_gact_measures_neighbours_together_where_there_are_many_tensors():
    assert gact.neighbours(range(5), 8) == [range(0, 1), range(1, 2), range(2, 3), range(3, 4), range(4, 5)]
    assert gact.neighbours(range(7), 3) == [range(0, 2), range(2, 4), range(4, 7)]


def test_gact_learns_widths_before_training():
    model = contestant("gact", tokens)
    images, labels = batch(tokens)
    with KeptBytes(model) as counted:
        model(images)
    assert counted.total < kept(tokens(), images) / 5
    assert torch.isfinite(gradient(model, images, labels)).all()


def test_division_is_exact_where_blocks_are_constant():
    x = torch.randn(2, 3, 2, 2).bfloat16().float().repeat_interleave(8, 2).repeat_interleave(8, 3)
    method = division.Division(bits=2, seed=0)
    saved, decode = method.encode(x, 0)
    assert torch.allclose(decode(*saved), x, atol=1e-6)


def test_division_takes_maps_and_tokens_of_any_size():
    for shape in ((2, 3, 20, 9), (2, 19, 16), (4, 300)):
        x = torch.randn(shape)
        saved, decode = division.Division(bits=8, seed=0).encode(x, 0)
        assert torch.allclose(decode(*saved), x, atol=0.1)


def test_mesa_follows_ranges_slowly_and_cuts_off_what_is_outside():
    method = mesa.Mesa()
    method.encode(torch.linspace(0, 1, 512).view(2, 16, 16), 0)
    saved, decode = method.encode(torch.full((2, 16, 16), 10.0), 0)
    assert 1.0 < float(decode(*saved).max()) < 2.1


def test_a_masked_relu_and_a_positioned_pooling_have_exact_gradients():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 11, 9, requires_grad=True)
    weights = torch.randn(2, 3, 6, 5)
    exact = torch.autograd.grad((functional.max_pool2d(functional.relu(x), 3, 2, 1) * weights).sum(), x)
    found = torch.autograd.grad((PositionedMaxPool.apply(MaskedReLU.apply(x), 3, 2, 1) * weights).sum(), x)
    assert torch.allclose(exact[0], found[0])


def test_rematerialization_drops_the_large_and_cheap_first():
    memory = rematerialization.Memory(nn.Identity(), 0.5)
    made = []
    for size, cost in ((100, 1.0), (400, 1.0), (100, 0.1)):
        each = rematerialization.Activations(memory, nn.Identity(), None, (), {})
        each.size, each.cost, each.used = size, cost, 0.0
        made.append(each)
    assert sorted(made, key=lambda each: each.worth(10.0)) == [made[2], made[1], made[0]]


def test_rematerialization_keeps_within_its_share_and_leaves_running_statistics_alone():
    images, labels = batch(resnet)
    plain, model = resnet(), contestant("dtr", resnet)
    for _ in range(2):
        gradient(plain, images, labels)
    model.load_state_dict(resnet().state_dict())
    for _ in range(2):
        gradient(model, images, labels)
    for name, value in plain.named_buffers():
        assert torch.allclose(value.float(), dict(model.named_buffers())[name].float()), name


def test_a_peer_trains_in_benchmarks_by_its_name():
    task = Task("small_resnet", batch=4, height=32, width=32)
    sizes = {}
    for name in ("exact", "blpa4", "mesa", "gact"):
        trained = trainee(task, name)
        first = trained.step()
        assert trained.step() < first
        sizes[name] = trained.kept()["kept_bytes"]
    assert sizes["blpa4"] < sizes["gact"] < sizes["mesa"] < sizes["exact"] / 3
    assert [task.run_of(name)["bits"] for name in sizes] == [None, 4, 8, 4]


def test_a_peer_is_for_torch_alone():
    with pytest.raises(UnsupportedError, match="written for torch"):
        peers.applied("mesa", "paddle", None, 0)


def test_torch_compile_with_a_budget_has_the_exact_gradient_and_keeps_less():
    images, labels = batch(tokens)
    # the same partition without the minute that a compiler takes
    model = compile_budget.compile_budget(tokens(), backend="aot_eager_decomp_partition")
    assert relative(gradient(model, images, labels), gradient(tokens(), images, labels)) < 1e-9
    assert kept(model, images) < kept(tokens(), images)
