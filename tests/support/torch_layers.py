"""The cases in torch: layers, inputs, one training step, and comparisons that raise."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from layer_cases import Case
from torch import Tensor, nn

import actnn


@dataclass
class Step:
    """What one forward and backward gave: the output, gradients by name ("input" too) and buffers."""

    output: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def plain_layer(case: Case) -> nn.Module:
    """Return a plain layer with parameters that are not special in any way."""
    torch.manual_seed(1)
    layer = getattr(nn, case.kind)(*case.arguments, **case.options)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.affine:
        nn.init.normal_(layer.weight, 0.5)
        nn.init.normal_(layer.bias)
    return layer


def input_of(case: Case) -> Tensor:
    """Return an input for a case."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(case.shape, generator=generator)


def compressed(model: nn.Module, bits: int = 8, seed: int = 0, level: str = "L2", **settings: object) -> actnn.QModule:
    """Return a converted copy of a model."""
    actnn.set_optimization_level(level)
    actnn.config.activation_compression_bits = [bits]
    for name, value in settings.items():
        setattr(actnn.config, name, value)
    return actnn.QModule(deepcopy(model), seed=seed)


def step(model: nn.Module, x: Tensor, grad: Tensor | Callable[[Tensor], Tensor] | None = None) -> Step:
    """Run one forward and backward; ``grad`` defaults to fixed random numbers, torch's generator is seeded anew."""
    model.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_()
    torch.manual_seed(3)
    # a leaf, and a view of one, may not be changed in place
    y = model(x.clone() if getattr(model, "inplace", False) else x.view_as(x))
    if callable(grad):
        grad = grad(y)
    if grad is None:
        grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(4)).to(y.dtype)
    y.backward(grad)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return Step(y.detach(), {"input": x.grad, **gradients}, buffers)


def check_equal(found: Step, expected: Step) -> None:
    """Raise unless outputs, gradients and buffers are the same bit for bit."""
    same(found.output, expected.output, "output")
    check_same_names(found, expected)
    for kind in ("gradients", "buffers"):
        for name, value in getattr(expected, kind).items():
            same(getattr(found, kind)[name], value, f"{kind} of {name}")


def check_step(found: Step, expected: Step, case: Case, relative: float = 0.01) -> None:
    """Raise unless the forward is that of the plain layer and every gradient within ``relative`` of the exact one.

    BatchNorm's forward may differ by float rounding; the gradients of lossless layers, and those of the input and the
    bias of convolutions and linear layers, may not differ by more than that either.
    """
    check_same_names(found, expected)
    if case.kind.startswith("BatchNorm"):
        close(found.output, expected.output, 1e-5, "output")
        for name, buffer in expected.buffers.items():
            close(found.buffers[name], buffer, 1e-5, name)
    else:
        same(found.output, expected.output, "output")
    for name, gradient in expected.gradients.items():
        exact = case.lossless or (name in ("input", "bias") and not case.kind.startswith("BatchNorm"))
        close(found.gradients[name], gradient, 1e-5 if exact else relative, f"gradient of {name}")


def check_same_names(found: Step, expected: Step) -> None:
    """Raise unless the same parameters got gradients."""
    assert found.gradients.keys() == expected.gradients.keys()


def same(found: Tensor, expected: Tensor, what: str = "tensor") -> None:
    """Raise unless two tensors have the same dtype, shape and values; every NaN counts as the same."""
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} instead of {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    alike = (found == expected) | (found.isnan() & expected.isnan())
    assert alike.all(), f"{what}: {int((~alike).sum())} of {alike.numel()} elements differ"


def close(found: Tensor, expected: Tensor, relative: float, what: str = "tensor") -> None:
    """Raise unless two tensors have the same dtype and shape, and differ by no more than a part of their norm."""
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} instead of {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    error = float((found.double() - expected.double()).norm())
    # 1e-6: gradients that are zero but for rounding, as that of the input of a BatchNorm with equal gradients
    bound = relative * float(expected.double().norm()) + 1e-6
    assert error <= bound, f"{what}: off by {error:.3g}, at most {bound:.3g} allowed"


def saved_bytes(model: nn.Module, call: Callable[[], object]) -> int:
    """Return the bytes that autograd keeps of a call besides the model's own parameters and buffers.

    Tensors that share memory count once.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
    del result
    return sum(storage.nbytes() for storage in storages.values())


def many_gradients(model: nn.Module, x: Tensor, repeats: int) -> dict[str, Tensor]:
    """Return the gradients of many steps on one input, each under keys of its own, stacked by name."""
    steps = [step(model, x).gradients for _ in range(repeats)]
    return {name: torch.stack([each[name] for each in steps]) for name in steps[0]}


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut, joined in place as usual implementations do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class SmallNetwork(nn.Module):
    """A little of everything: residual blocks, both kinds of pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.block = ResidualBlock(8, 12)
        self.average = nn.AvgPool2d(4)
        self.head = nn.Linear(12 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.pool(self.stem(x)))
        return self.head(self.average(x).flatten(1))


def small_network() -> SmallNetwork:
    """Return a small network with fixed parameters."""
    torch.manual_seed(6)
    return SmallNetwork()


def images(batch: int = 8) -> Tensor:
    """Return inputs for the small network."""
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(7))
