"""Paddle behind the face of all frameworks."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import paddle
from frameworks import Framework
from paddle import nn
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F
from paddle_spelling import paddle_name, paddle_options

# Paddle's BatchNorm keeps these among its parameters
STATISTICS = ("_mean", "_variance")


class Wired(nn.Layer):
    """Parts by name, and a function that joins them."""

    def __init__(self, wiring: Any, parts: dict[str, Any]) -> None:
        super().__init__()
        self.wiring = wiring
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *arguments, **named):
        return self.wiring(self, *arguments, **named)


class Paddle(Framework):
    """PaddlePaddle."""

    name = "paddle"
    tensor_type = paddle.Tensor
    module_type = nn.Layer
    # Paddle has neither convolutions nor linear layers of half precision on the host
    halves = ()
    linear_is_transposed = True
    rounding = 3e-6

    @property
    def actnn(self):
        return import_module("actnn.paddle")

    def layer(self, kind, *arguments, **options):
        if kind in ("Sequential", "LayerList", "ReLU"):
            return getattr(nn, kind)(*arguments)
        return getattr(nn, paddle_name(kind))(**paddle_options(kind, arguments, options))

    def made_by_hand(self, kind, *arguments, **options):
        return getattr(self.actnn, f"Q{paddle_name(kind)}")(**paddle_options(kind, arguments, options))

    def wired(self, forward, **parts):
        return Wired(forward, parts)

    def type_name(self, kind):
        return paddle_name(kind)

    def layers(self, model):
        return model.named_sublayers(include_self=True)

    def own_parameters(self, layer):
        return dict(layer.named_parameters(include_sublayers=False))

    def assign(self, parameter, values):
        parameter.set_value(np.ascontiguousarray(values))

    def freeze(self, thing, frozen=True):
        parameters = [thing] if isinstance(thing, paddle.Tensor) else thing.named_parameters()
        for each in parameters:
            name, parameter = each if isinstance(each, tuple) else ("", each)
            if not name.endswith(STATISTICS):
                parameter.stop_gradient = frozen
        return thing

    def is_frozen(self, parameter):
        return parameter.stop_gradient

    def training(self, model, mode=True):
        model.train() if mode else model.eval()
        return model

    def cast(self, thing, dtype):
        return thing.astype(dtype) if isinstance(thing, paddle.Tensor) else thing.to(dtype=dtype)

    def tensor(self, values, gradient=False):
        return paddle.to_tensor(np.array(values), stop_gradient=not gradient)

    def parameter(self, values):
        parameter = paddle.create_parameter(list(values.shape), str(values.dtype))
        parameter.set_value(values)
        return parameter

    def array(self, tensor):
        tensor = tensor.detach()
        return (tensor.astype("float32") if tensor.dtype == paddle.bfloat16 else tensor).numpy()

    def dtype_of(self, tensor):
        return str(tensor.dtype).removeprefix("paddle.")

    def wants_gradient(self, tensor):
        return not tensor.stop_gradient

    def concatenated(self, tensors, axis):
        return paddle.concat(tensors, axis)

    def relu(self, x):
        return F.relu(x)

    def cross_entropy(self, logits, targets, reduction="mean"):
        return F.cross_entropy(logits, paddle.to_tensor(np.asarray(targets)), reduction=reduction)

    def after_forward(self, layer, call):
        def hook(_layer, _inputs, output):
            call(output)

        layer.register_forward_post_hook(hook)

    def use_one_thread(self):
        paddle.base.core.set_num_threads(1)

    def seed(self, number):
        paddle.seed(number)

    def random_numbers(self, count):
        return paddle.rand([count]).numpy()

    def no_grad(self):
        return paddle.no_grad()

    def enable_gradients(self):
        paddle.set_grad_enabled(True)

    def autocast(self, dtype):
        return paddle.amp.auto_cast(dtype=dtype)

    def checkpoint(self, block, x):
        return recompute(block, x)

    def recording_checkpoint(self, block, x):
        return recompute(block, x, use_reentrant=False)

    def clear(self, model):
        model.clear_gradients(set_to_zero=False)

    def optimizer(self, model, rate, momentum=0.0, decay=0.0):
        return paddle.optimizer.Momentum(
            learning_rate=rate, momentum=momentum, parameters=model.parameters(), weight_decay=decay or None
        ).step

    def saved_bytes(self, model, call):
        own = {tensor.data_ptr() for tensor in model.state_dict().values()}
        sizes: dict[int, int] = {}

        def pack(tensor):
            if tensor.data_ptr() not in own:
                sizes[tensor.data_ptr()] = tensor.size * tensor.element_size()
            # the very tensor that was given would hold the graph, and the graph it
            return tensor.detach()

        with paddle.autograd.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = call()
        del result
        return sum(sizes.values())

    def buffers(self, model):
        statistics = {name: each for name, each in model.named_parameters() if name.endswith(STATISTICS)}
        return {name: self.array(each).copy() for name, each in statistics.items()} | super().buffers(model)

    def saved_codes(self, call):
        codes: dict[int, paddle.Tensor] = {}

        def pack(tensor):
            detached = tensor.detach()
            if tensor.dtype == paddle.uint8 and tensor.size:
                codes.setdefault(tensor.data_ptr(), detached)
            return detached

        with paddle.autograd.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = call()
        del result
        return [tensor.numpy().tobytes() for tensor in codes.values()]

    def load(self, model, state):
        model.set_state_dict(state)

    def leaf(self, x):
        x = x.detach()
        x.stop_gradient = False
        return x

    def activation(self, leaf, inplace):
        return leaf.clone()


FRAMEWORK = Paddle()
