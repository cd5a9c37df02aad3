"""actnn.compile: an exact forward, an unbiased gradient, few bytes, fresh noise, and nothing compiled twice."""

from __future__ import annotations

import compiled_process
import pytest
import torch
from torch import _dynamo as dynamo
from torch import nn
from torch.nn import functional as F
from z_tests import check_unbiased

import actnn
from actnn.torch.callers import evaluated_elsewhere
from actnn.torch.compiled import backend, model
from actnn.torch.memory import KeptBytes

DRAWS = 60
ROUNDING = 1e-5


class Convolutional(nn.Module):
    """Convolutions, BatchNorms with a ReLU and behind an addition, pooling and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(3)])
        self.third, self.fourth = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.last = nn.Linear(256, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norms[0](self.first(x))), 2)
        x = F.relu(self.norms[1](self.second(x)) + x)
        x = F.relu(self.norms[2](self.third(x)))
        return self.last(F.max_pool2d(F.relu(self.fourth(x)), 2).flatten(1))


class Transformer(nn.Module):
    """One block: attention and a GELU between LayerNorms."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv.unbind(0))
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Case:
    """A model, its batch, what exact training finds, and the same model compiled."""

    def __init__(self, model: nn.Module, x: torch.Tensor) -> None:
        self.model, self.x = model, x
        self.state = {name: value.clone() for name, value in model.state_dict().items()}
        with KeptBytes(model) as kept:
            loss = self.loss(model)
        self.plain_bytes = kept.total
        loss.backward()
        self.exact_loss, self.exact = loss.item(), self.gradient()
        model.load_state_dict(self.state)
        self.compiled = actnn.compile(model, bits=2)
        self.first_loss = self.step()[0]
        self.buffers = {name: value.clone() for name, value in model.named_buffers()}

    def loss(self, model: nn.Module) -> torch.Tensor:
        return (model(self.x) * torch.linspace(-1, 1, 5 if self.x.dim() == 4 else 64)).sum()

    def gradient(self) -> torch.Tensor:
        found = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])
        self.model.zero_grad(set_to_none=True)
        return found

    def step(self) -> tuple[float, torch.Tensor]:
        loss = self.loss(self.compiled)
        loss.backward()
        return loss.item(), self.gradient()


CASES = {
    "convolutional": lambda: Case(Convolutional(), torch.randn(16, 3, 16, 16)),
    "transformer": lambda: Case(Transformer(), torch.randn(8, 32, 64)),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    torch.manual_seed(0)
    dynamo.reset()
    return CASES[request.param]()


def test_the_forward_is_exact(case):
    assert case.first_loss == pytest.approx(case.exact_loss, rel=ROUNDING)


def test_the_gradient_is_unbiased_and_its_noise_fresh(case):
    gradients = torch.stack([case.step()[1] for _ in range(DRAWS)])
    assert not torch.equal(gradients[0], gradients[1])
    # BatchNorm and attention have a small bias, far below the noise of one step
    check_unbiased(gradients, case.exact, allowance=2e-3 * case.exact.abs().numpy() + 1e-4)


def test_few_bytes_are_kept_and_the_report_tells_them(case):
    with KeptBytes(case.model) as kept:
        loss = case.loss(case.compiled)
    beside = 2 * 4 * case.x.shape[0] * (5 if case.x.dim() == 4 else case.x[0].numel()) + 4 * 64
    report = case.compiled.report()
    assert report.kept_bytes <= kept.total <= report.kept_bytes + beside
    assert case.plain_bytes / report.kept_bytes > 10
    assert report.bytes_of("code") > 0.8 * report.kept_bytes
    assert "bytes kept" in str(report)
    del loss


def test_readers_share_codes(case):
    # image, BatchNorm, pooled, BatchNorm, ReLU, BatchNorm for its ReLU and the map behind, pooled;
    # or LayerNorm, three of attention, its output, LayerNorm, GELU for itself and the map behind
    assert sum(each.kind == "code" for each in case.compiled.report().graphs[0].saved) == 7


def test_nothing_is_compiled_twice(case):
    dynamo.utils.counters.clear()
    for _ in range(3):
        case.step()
    assert not dynamo.utils.counters["stats"]
    assert len(case.compiled.report().graphs) == 1


def test_the_state_is_that_of_the_plain_model(case):
    assert list(case.compiled.state_dict()) == list(case.state)
    for name, value in case.buffers.items():
        if name.endswith("running_mean"):
            assert not torch.equal(value, case.state[name])


def test_dropout_masks_are_bits_and_evaluation_is_plain():
    dynamo.reset()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 8))
    compiled, x = actnn.compile(model, bits=8), torch.randn(64, 64)
    compiled(x).square().mean().backward()
    report = compiled.report()
    assert report.bytes_of("mask") == 2 * 64 * 128 // 8
    assert all(each.nbytes <= 4 * 64 * 8 for each in report.graphs[0].saved if each.kind == "exact")
    compiled.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert not model.training


def test_a_code_that_would_meet_itself_in_a_product_is_not_made():
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.gate = nn.LayerNorm(64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            return y * torch.sigmoid(self.gate(y))

    dynamo.reset()
    model, x = Gated(), torch.randn(8, 16, 64)
    model(x).square().mean().backward()
    exact = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    actnn.compile(model, bits=8)(x).square().mean().backward()
    for name, parameter in model.named_parameters():
        error = (parameter.grad - exact[name]).norm() / exact[name].norm()
        assert error < 0.02, name


class Cubic(torch.autograd.Function):
    """x³ / 3 - x, whose backward multiplies two tensors that it computes from x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3 / 3 - x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (x + 1) * (x - 1) * grad


MEETINGS = {
    "two sums of one tensor": lambda h, weight: Cubic.apply(h) @ weight,
    "a transposed tensor and a gradient that read it": lambda h, weight: h * (h @ weight),
    "a transposed stack and a gradient that read it": lambda h, weight: (
        h * torch.bmm(h.view(4, -1, 64), weight.expand(4, 64, 64)).view(h.shape)
    ),
    "a tensor and its transposed self": lambda h, weight: (h @ h.T) @ (h @ weight),
}


@pytest.mark.parametrize("meeting", MEETINGS)
def test_a_code_that_meets_itself_through_others_gives_no_bias(meeting, monkeypatch):
    monkeypatch.setattr(backend, "compile_inner", backend.interpret_inner)

    class Meeting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map, self.weight = nn.Linear(64, 64), nn.Parameter(torch.randn(64, 64) / 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return MEETINGS[meeting](self.map(x), self.weight)

    dynamo.reset()
    torch.manual_seed(0)
    model, x = Meeting(), torch.randn(128, 64)
    compiled, slopes = actnn.compile(model, bits=1), torch.randn(128, 64)

    def gradient(of: nn.Module) -> torch.Tensor:
        model.zero_grad()
        (of(x) * slopes).sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    exact = gradient(model)
    check_unbiased(torch.stack([gradient(compiled) for _ in range(DRAWS)]), exact)
    assert compiled.report().bytes_of("code") > 0


def test_sizes_marked_as_dynamic_are_refused():
    dynamo.reset()
    compiled, x = actnn.compile(nn.Linear(64, 64)), torch.randn(128, 64)
    dynamo.mark_dynamic(x, 0)
    with pytest.raises(actnn.UnsupportedError, match="dynamic"):
        compiled(x)
    # or layers of this process could not tell who reads a tensor last
    assert not evaluated_elsewhere()


def test_more_kinds_of_inputs_than_torch_compiles_for_are_refused():
    dynamo.reset()
    compiled = actnn.compile(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    with dynamo.config.patch(recompile_limit=2):
        for batch in (16, 24, 16):
            compiled(torch.randn(batch, 64)).sum().backward()
        for _ in range(2):
            with pytest.raises(actnn.UnsupportedError, match="than the 2 that torch compiles"):
                compiled(torch.randn(32, 64))
        compiled(torch.randn(24, 64)).sum().backward()
    assert not evaluated_elsewhere()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"level": "L4"}, actnn.ConfigError, "a width each"),
        ({"level": "L9"}, actnn.ConfigError, "no level"),
        ({"bits": 9}, actnn.ConfigError, "1 to 8"),
        ({"backend": "inductor"}, actnn.ConfigError, "backend"),
    ],
)
def test_what_cannot_be_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        actnn.compile(nn.Linear(2, 2), **options)


def test_a_model_that_processes_or_devices_share_already_is_refused_with_the_order_that_works():
    with pytest.raises(actnn.UnsupportedError, match="Compile first, and give the result to DataParallel"):
        actnn.compile(nn.Sequential(nn.DataParallel(nn.Linear(2, 2))))


def test_only_modules_are_compiled():
    with pytest.raises(actnn.UnsupportedError, match="Module"):
        actnn.compile(lambda x: x)


def test_two_processes_agree_on_a_gradient_near_the_exact_one(tmp_path):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    torch.multiprocessing.spawn(compiled_process.train, (str(tmp_path),), nprocs=2)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    model = compiled_process.network()
    for rank in (0, 1):
        (model(compiled_process.batch(rank)).square().mean() / 2).backward()
    for first, second, parameter in zip(*found, model.parameters(), strict=True):
        assert torch.equal(first, second)
        assert (first - parameter.grad).norm() < 0.02 * parameter.grad.norm()


@pytest.mark.parametrize(("level", "times"), [("L2", 1), ("L0", 0)])
def test_the_c_library_keeps_freed_blocks_where_little_is_held(level, times, monkeypatch):
    told = []
    monkeypatch.setattr(model.heap, "keep_blocks", lambda: told.append(level))
    actnn.compile(nn.Linear(4, 4), level=level)
    assert told == [level] * times
