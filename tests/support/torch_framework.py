"""torch behind the face of all frameworks."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch
from frameworks import Framework
from steps import close, same
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import actnn


class Wired(nn.Module):
    """Parts by name, and a function that joins them."""

    def __init__(self, wiring: Any, parts: dict[str, Any]) -> None:
        super().__init__()
        self.wiring = wiring
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *arguments, **named):
        return self.wiring(self, *arguments, **named)


class Torch(Framework):
    """PyTorch."""

    name = "torch"
    tensor_type = torch.Tensor
    module_type = nn.Module
    halves = ("bfloat16", "float16")

    @property
    def actnn(self) -> ModuleType:
        return actnn

    def layer(self, kind, *arguments, **options):
        return getattr(nn, kind)(*arguments, **options)

    def made_by_hand(self, kind, *arguments, **options):
        return getattr(actnn, f"Q{kind}")(*arguments, **options)

    def wired(self, forward, **parts):
        return Wired(forward, parts)

    def type_name(self, kind):
        return kind

    def layers(self, model):
        return model.named_modules()

    def own_parameters(self, layer):
        return dict(layer.named_parameters(recurse=False))

    def assign(self, parameter, values):
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(np.array(values)))

    def freeze(self, thing, frozen=True):
        return thing.requires_grad_(not frozen)

    def is_frozen(self, parameter):
        return not parameter.requires_grad

    def training(self, model, mode=True):
        return model.train(mode)

    def cast(self, thing, dtype):
        return thing.to(getattr(torch, dtype))

    def tensor(self, values, gradient=False):
        # a tensor stays as it lies in memory
        tensor = values.detach() if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(values))
        return tensor.requires_grad_(gradient)

    def parameter(self, values):
        return nn.Parameter(torch.from_numpy(values))

    def array(self, tensor):
        tensor = tensor.detach()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()

    def dtype_of(self, tensor):
        return str(tensor.dtype).removeprefix("torch.")

    def wants_gradient(self, tensor):
        return tensor.requires_grad

    def concatenated(self, tensors, axis):
        return torch.cat(tensors, axis)

    def relu(self, x):
        return F.relu(x)

    def cross_entropy(self, logits, targets, reduction="mean"):
        return F.cross_entropy(logits, torch.from_numpy(np.asarray(targets)), reduction=reduction)

    def after_forward(self, layer, call):
        def hook(_layer, _inputs, output):
            call(output)

        layer.register_forward_hook(hook)

    def use_one_thread(self):
        torch.set_num_threads(1)

    def seed(self, number):
        torch.manual_seed(number)

    def random_numbers(self, count):
        return torch.rand(count).numpy()

    def no_grad(self):
        return torch.no_grad()

    def enable_gradients(self):
        torch.set_grad_enabled(True)

    def autocast(self, dtype):
        return torch.autocast("cpu", getattr(torch, dtype))

    def checkpoint(self, block, x):
        return checkpoint(block, x, use_reentrant=False)

    def recording_checkpoint(self, block, x):
        return self.checkpoint(block, x)

    def clear(self, model):
        model.zero_grad(set_to_none=True)

    def optimizer(self, model, rate, momentum=0.0, decay=0.0):
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=decay).step

    def saved_bytes(self, model, call):
        own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        storages: dict[int, torch.UntypedStorage] = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                storages[storage.data_ptr()] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = call()
        del result
        return sum(storage.nbytes() for storage in storages.values())

    def saved_codes(self, call):
        codes: dict[int, torch.Tensor] = {}

        def pack(tensor):
            if tensor.dtype == torch.uint8 and tensor.numel():
                codes.setdefault(tensor.data_ptr(), tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = call()
        del result
        return [tensor.numpy().tobytes() for tensor in codes.values()]

    def load(self, model, state):
        model.load_state_dict(state)

    def leaf(self, x):
        return x.detach().requires_grad_()

    def activation(self, leaf, inplace):
        # a view of a leaf may not be changed in place
        return leaf.clone() if inplace else leaf.view_as(leaf)


FRAMEWORK = Torch()


def same_tensors(found: torch.Tensor, expected: torch.Tensor, what: str = "tensor") -> None:
    """Raise unless two tensors have the same dtype, shape and values; every NaN counts as the same."""
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} instead of {expected.dtype}"
    same(FRAMEWORK.array(found), FRAMEWORK.array(expected), what)


def close_tensors(found: torch.Tensor, expected: torch.Tensor, relative: float, what: str = "tensor") -> None:
    """Raise unless two tensors have the same dtype and shape, and differ by no more than a part of their norm."""
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} instead of {expected.dtype}"
    close(FRAMEWORK.array(found), FRAMEWORK.array(expected), relative, what)
