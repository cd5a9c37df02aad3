"""A backend for torch.compile: AOTAutograd with our partition, and inductor behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.source import LocalSource
from torch._functorch import config as functorch
from torch._guards import detect_fake_mode
from torch._inductor import config as inductor
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.replace_random import replace_random_passes
from torch.fx.experimental.proxy_tensor import make_fx

from actnn.torch.compiled import attention, codes, norms  # noqa: F401
from actnn.torch.compiled.partition import Partition

aten = torch.ops.aten


# AOTAutograd's cache knows a graph before it is divided, and would return one with codes of other widths. A backward
# must not write to what was saved, since a tensor and a view of it may both be.
SETTINGS = {"enable_autograd_cache": False, "donated_buffer": False}


class Backend:
    """Compiles graphs whose forwards keep codes; ``draws`` returns (seed, call) for the next call of one of them."""

    def __init__(self, partition: Partition, draws: Callable[[], Tensor]) -> None:
        self.partition, self._draws = partition, draws

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return a graph that Dynamo traced, compiled: called with the same inputs."""
        draw = self._draws()
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        with module.graph.inserting_after(places[-1]) if places else module.graph.inserting_before():
            added = module.graph.placeholder("actnn_draw")
        mode = detect_fake_mode(inputs)
        example = draw if mode is None else mode.from_tensor(draw, static_shapes=True)
        added.meta["example_value"] = example
        # AOTAutograd wants to know of every input where it comes from
        added._dynamo_source = LocalSource("actnn_draw")
        module.recompile()
        inner = partial(compile_inner, self.partition)
        try:
            with inductor.patch(custom_partitioner_fn=self.partition), functorch.patch(SETTINGS):
                # nothing is taken apart before rules have seen it
                compiled: Any = compile_fx(module, [*inputs, example], inner_compile=inner, decompositions={})
        finally:
            # Dynamo goes through its inputs again
            module.graph.erase_node(added)

        def call(*arguments: Any) -> Any:
            return compiled(*arguments, self._draws())

        return call


def compile_inner(partition: Partition, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """Take a forward or a backward apart into what inductor compiles, and let it do so."""
    # backwards are compiled when they are first called, and inductor's cache must know whose they are
    with inductor.patch(custom_partitioner_fn=partition):
        return compile_fx_inner(decomposed(module), inputs, **options)


def decomposed(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph of the functions that inductor knows, which computes the same."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    inputs = [node.meta["val"] for node in placeholders]
    output = next(node for node in module.graph.nodes if node.op == "output")
    mode = detect_fake_mode(inputs)
    if mode is None:
        return module
    allowed, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with mode:
            traced = make_fx(Retracing(module).run, decomposition_table=select_decomp_table())(*inputs)
    finally:
        mode.allow_non_fake_inputs = allowed
    for node, old in zip((each for each in traced.graph.nodes if each.op == "placeholder"), placeholders, strict=True):
        node.meta |= {name: value for name, value in old.meta.items() if name != "val"}
    new = next(node for node in traced.graph.nodes if node.op == "output")
    new.meta |= output.meta
    keep_parameters(new)
    # of dropout, which is taken apart only now
    replace_random_passes(traced)
    return traced


def keep_parameters(output: Any) -> None:
    """Let a graph return inputs of its own as they are.

    Inductor would rearrange the weights of convolutions, and save the copies; what users see it leaves alone.
    """
    visible = output.meta.get("user_visible_output_idxs")
    if visible is not None:
        (results,) = output.args
        given = [place for place, node in enumerate(results) if isinstance(node, fx.Node) and node.op == "placeholder"]
        output.meta["user_visible_output_idxs"] = sorted({*visible, *given})


class Retracing(fx.Interpreter):
    """Runs a graph whose tensors may lie in another order than when it was traced."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.results: Any = next(node for node in module.graph.nodes if node.op == "output")

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call a function; a view that the present order of a tensor does not allow is a copy."""
        if target is aten.view.default:
            return aten.reshape.default(*args, **kwargs)
        return super().call_function(target, args, kwargs)

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return results in the order in which they were traced, since others rely on it."""
        (results,) = args
        (traced,) = self.results.args
        pairs = zip(results, traced, strict=True)
        return type(results)(as_traced(result, node) for result, node in pairs)


def as_traced(result: Any, node: Any) -> Any:
    """Return a result with the strides that it was traced with."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(result, Tensor) or not isinstance(value, Tensor) or result.stride() == value.stride():
        return result
    if value.is_contiguous():
        return result.clone(memory_format=torch.contiguous_format)
    return result.clone(memory_format=torch.preserve_format).as_strided(value.shape, value.stride())
