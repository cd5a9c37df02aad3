"""Tracers, exporters, compilers and transforms of functions: they see the plain model, or say the order that works."""

from __future__ import annotations

import io
import warnings
import weakref
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import actnn


class Network(nn.Module):
    """Layers that are converted, and a function that is served."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)
        self.rectify = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.rectify(self.norm(self.first(x)))).mean((2, 3)))


def pair() -> tuple[nn.Module, actnn.QModule, Tensor]:
    torch.manual_seed(0)
    plain = Network()
    return plain, actnn.QModule(deepcopy(plain)), torch.randn(4, 3, 8, 8)


def evaluating() -> tuple[nn.Module, actnn.QModule, Tensor]:
    """Return both in evaluation, with autograd on: nobody need think of no_grad."""
    plain, ours, x = pair()
    ours(x).sum().backward()
    plain.load_state_dict(ours.state_dict())
    return plain.eval(), ours.eval(), x


@pytest.mark.works_with("torch.export")
def test_an_exported_program_computes_what_the_plain_model_does():
    plain, ours, x = evaluating()
    program = torch.export.export(ours, (x,))
    torch.testing.assert_close(program.module()(x), plain(x))


@pytest.mark.works_with("torch.jit.trace")
def test_a_traced_model_computes_what_the_plain_model_does():
    plain, ours, x = evaluating()
    torch.testing.assert_close(torch.jit.trace(ours, x)(x), plain(x))


@pytest.mark.works_with("torch.fx")
def test_a_model_recorded_by_fx_computes_what_the_plain_model_does():
    plain, ours, x = evaluating()
    recorded = torch.fx.symbolic_trace(ours)
    torch.testing.assert_close(recorded(x), plain(x))
    torch.testing.assert_close(torch.fx.symbolic_trace(nn.Sequential(ours))(x), plain(x))


@pytest.mark.works_with("ONNX")
@pytest.mark.parametrize("dynamo", [True, False], ids=["exporter", "tracer"])
def test_a_model_becomes_a_file_of_onnx(dynamo):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    _, ours, x = evaluating()
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(ours, (x,), buffer, dynamo=dynamo)
    onnx.checker.check_model(onnx.load_from_string(buffer.getvalue()))


def test_a_model_trains_after_all_of_them():
    _, ours, x = evaluating()
    torch.export.export(ours, (x,))
    torch.jit.trace(ours, x)
    torch.fx.symbolic_trace(ours)
    ours.train()
    ours(x).sum().backward()
    assert ours.report().kept_bytes > 0


@pytest.mark.works_with("torch.func")
def test_transforms_of_functions_have_the_exact_gradients():
    plain, ours, x = evaluating()
    parameters = {name: value.detach() for name, value in plain.named_parameters()}

    def gradient(model: nn.Module) -> dict[str, Tensor]:
        return grad(lambda parameters: functional_call(model, parameters, (x,)).square().sum())(parameters)

    found, expected = gradient(ours), gradient(plain)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


@pytest.mark.works_with("torch.func")
def test_per_sample_gradients_are_exact():
    _, ours, x = evaluating()
    parameters = {name: value.detach() for name, value in ours.named_parameters()}

    def loss(parameters, sample):
        return functional_call(ours, parameters, (sample[None],)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    whole = grad(lambda parameters: functional_call(ours, parameters, (x,)).square().sum())(parameters)
    torch.testing.assert_close(each["last.weight"].sum(0), whole["last.weight"])


@pytest.mark.works_with("torch.compile")
@pytest.mark.parametrize(
    "compiled", [torch.compile, lambda model: model.compile() or model], ids=["function", "method"]
)
def test_a_model_that_was_compiled_is_refused_with_the_order_that_works(compiled):
    with pytest.raises(actnn.UnsupportedError, match=r"torch\.compile\(actnn\.QModule\(model\)\)"):
        actnn.QModule(compiled(Network()))


def test_a_model_of_which_a_part_was_compiled_is_refused():
    model = nn.Sequential(Network(), nn.Linear(5, 5))
    model[1].compile()
    with pytest.raises(actnn.UnsupportedError, match="'1' was compiled"):
        actnn.QModule(model)


@pytest.mark.works_with("torch.compile")
def test_a_compiled_wrapper_says_once_that_it_runs_uncompiled():
    _, ours, x = pair()
    compiled = torch.compile(ours, backend="eager")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            compiled(x).sum().backward()
    assert len([each for each in seen if "uncompiled" in str(each.message)]) == 1


@pytest.mark.parametrize("part", ["model", "layer"])
def test_compiling_what_was_converted_in_place_warns_that_codes_are_lost(part):
    _, ours, x = pair()
    model = ours._model
    if part == "model":
        compiled = torch.compile(model, backend="eager", fullgraph=True)
    else:
        compiled, x = torch.compile(model.last, backend="eager", fullgraph=True), torch.randn(4, 8)
    with pytest.warns(UserWarning, match=r"keeps no codes.*actnn\.compile\(model\)"):
        compiled(x).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            torch.compile(model.eval(), backend="eager", fullgraph=True)(torch.randn(2, 3, 8, 8))
        torch.export.export(ours, (torch.randn(2, 3, 8, 8),))


def test_asking_a_wrapper_to_compile_says_so():
    _, ours, x = pair()
    with pytest.warns(UserWarning, match="uncompiled"):
        ours.compile()
    ours(x).sum().backward()


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(parametrizations.weight_norm, id="weight", marks=pytest.mark.works_with("weight_norm")),
        pytest.param(parametrizations.spectral_norm, id="spectral"),
    ],
)
def test_a_model_that_was_parametrised_since_can_be_restored(wrap):
    _, ours, x = pair()
    wrap(ours.last)
    ours(x).sum().backward()
    plain = ours.restore()
    plain.zero_grad()
    plain(x).sum().backward()
    assert type(plain.last).__name__ == "ParametrizedLinear"
    assert not isinstance(plain.last, actnn.QLinear)
    nn.utils.parametrize.remove_parametrizations(plain.last, "weight")
    assert type(plain.last) is nn.Linear


def test_a_model_of_double_precision_is_refused_at_conversion():
    with pytest.raises(actnn.UnsupportedError, match=r"'first\.weight' is of type float64.*model\.float\(\)"):
        actnn.QModule(Network().double())


def test_a_part_of_double_precision_may_stay_exact():
    model = Network()
    model.last.double()
    ours = actnn.QModule(model, exact=["last"])
    assert type(ours.last) is nn.Linear
    actnn.QModule(Network().double(), level="L0")


def test_no_error_points_to_a_header_of_c():
    from actnn.kernels.native.library import refuse

    with pytest.raises(actnn.FormatError, match="actnn doctor") as raised:
        refuse("actnn_encode", 3)
    assert ".h" not in str(raised.value)


def test_looking_for_a_compiler_holds_no_tensor():
    import torch._dynamo

    model = actnn.QModule(nn.Sequential(nn.Linear(150, 20)), level="L2")
    activation = torch.randn(16, 150, requires_grad=True) * 1
    held = weakref.ref(activation)
    result = model(activation)
    del activation
    assert result.requires_grad
    assert held() is None
