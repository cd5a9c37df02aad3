"""A backend for torch.compile: AOTAutograd with our partition, and inductor behind it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.source import LocalSource
from torch._functorch import config as functorch
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import detect_fake_mode
from torch._inductor import config as inductor
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.replace_random import replace_random_passes
from torch.fx.experimental.proxy_tensor import make_fx

from actnn.errors import ActnnError, SessionError, UnsupportedError
from actnn.settings import Policy
from actnn.torch.compiled import attention, codes, norms  # noqa: F401
from actnn.torch.compiled.library import draw_of
from actnn.torch.compiled.partition import Partition
from actnn.torch.compiled.report import GraphReport

aten = torch.ops.aten


# AOTAutograd's cache knows a graph before it is divided, and would return one with codes of other widths. A backward
# must not write to what was saved, since a tensor and a view of it may both be.
SETTINGS = {"enable_autograd_cache": False, "donated_buffer": False}


# planned widths of the codes of a graph, by its structure and by their names
Plan = Mapping[str, Mapping[str, int]]
Draws = Callable[[GraphReport | None], Tensor]
# arguments whose text tells what they are
CONSTANTS = (fx.Node, bool, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class Backend:
    """Compiles graphs whose forwards keep codes; ``reports`` tells what each forward keeps.

    ``draws`` returns ``draw_of`` the next call of a graph, and is told what that keeps. With a ``plan`` every code must
    have its width there, and the graphs of one forward may keep ``memory`` bytes. Graphs that are not to be
    ``compiled`` run as they were traced, which takes less time where they run seldom.
    """

    def __init__(
        self,
        policy: Policy,
        bits: int,
        draws: Draws,
        plan: Plan | None = None,
        memory: int | None = None,
        compiled: bool = True,
    ) -> None:
        self._policy, self._bits, self._draws = policy, bits, draws
        self._plan, self._memory, self._kept = plan, memory, 0
        self._versions, self._limit = Counter[str](), 0
        self._compile = compile_inner if compiled else interpret_inner
        self.reports: list[GraphReport] = []

    def begin(self, limit: int) -> None:
        """Count what is kept from zero: a forward begins, of whose graphs there may be so many versions each."""
        self._kept, self._limit = 0, limit

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return a graph that Dynamo traced, compiled: called with the same inputs. One that is refused raises then.

        Not before: torch goes on evaluating the functions of a process itself after an error of a backend, and layers
        elsewhere could not tell who reads a tensor last.
        """
        structure = structure_of(module)
        try:
            self._count_version(structure)
            return self._compiled(module, inputs, structure)
        except ActnnError as problem:
            return partial(refuse, problem)

    def _count_version(self, structure: str) -> None:
        """Raise UnsupportedError beyond the limit: torch would run what is not compiled as it is, and keep all."""
        self._versions[structure] += 1
        if self._versions[structure] > self._limit:
            raise UnsupportedError(
                f"actnn.compile was given more kinds of inputs than the {self._limit} that torch compiles a model for. "
                "Give batches of a few fixed shapes, or raise torch._dynamo.config.recompile_limit."
            )

    def _compiled(self, module: fx.GraphModule, inputs: Sequence[Any], structure: str) -> Callable[..., Any]:
        widths = None if self._plan is None else self._plan.get(structure, {})
        partition = Partition(self._policy, self._bits, structure, widths)
        draw = draw_of(0, 0)
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        with module.graph.inserting_after(places[-1]) if places else module.graph.inserting_before():
            added = module.graph.placeholder("actnn_draw")
        mode = detect_fake_mode(inputs)
        example = draw if mode is None else mode.from_tensor(draw, static_shapes=True)
        added.meta["example_value"] = example
        # AOTAutograd wants to know of every input where it comes from
        added._dynamo_source = LocalSource("actnn_draw")
        module.recompile()
        inner = partial(self._compile, partition)
        try:
            with inductor.patch(custom_partitioner_fn=partition), functorch.patch(SETTINGS):
                # nothing is taken apart before rules have seen it
                compiled: Any = compile_fx(module, [*inputs, example], inner_compile=inner, decompositions={})
        finally:
            # Dynamo goes through its inputs again
            module.graph.erase_node(added)
        if partition.report is not None:
            self.reports.append(partition.report)

        def call(*arguments: Any) -> Any:
            self._count(partition.report)
            return compiled(*arguments, self._draws(partition.report))

        return call

    def _count(self, report: GraphReport | None) -> None:
        """Raise SessionError where a forward would keep more than it may."""
        self._kept += 0 if report is None else report.kept_bytes
        if self._memory is not None and self._kept > self._memory:
            raise SessionError(
                f"a forward of a model compiled with memory={self._memory} would keep {self._kept} bytes: its widths "
                "were planned for less. Give no larger batches than calibrate had, call calibrate(step) again with one "
                "as large, or compile with more memory."
            )


def refuse(problem: ActnnError, *arguments: Any) -> Any:
    """Raise an error, the same each time."""
    raise problem.with_traceback(None)


def structure_of(module: fx.GraphModule) -> str:
    """Return a name for what Dynamo traced: the same for inputs of other shapes, and in another process."""
    words = [
        f"{path} {node.op} {node.name} {name_of(node.target)} {constants(node.args)} {constants(node.kwargs)}"
        for path, part in module.named_modules()
        if isinstance(part, fx.GraphModule)
        for node in part.graph.nodes
    ]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def name_of(target: Any) -> str:
    """Return the name of what a node calls, without the address that a representation may tell."""
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or type(target).__qualname__
    return f"{getattr(target, '__module__', None)}.{name}"


def constants(argument: Any) -> str:
    """Return arguments as text: names of nodes and constants, but no whole number, any of which may be a size."""
    if isinstance(argument, (tuple, list)):
        return f"({' '.join(constants(each) for each in argument)})"
    if isinstance(argument, Mapping):
        return f"({' '.join(f'{name}={constants(each)}' for name, each in argument.items())})"
    if isinstance(argument, slice):
        return f"slice{constants((argument.start, argument.stop, argument.step))}"
    if isinstance(argument, int) and not isinstance(argument, bool):
        return "int"
    if argument is None or isinstance(argument, CONSTANTS):
        return str(argument)
    return name_of(argument)


def compile_inner(partition: Partition, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """Take a forward or a backward apart into what inductor compiles, and let it do so."""
    # backwards are compiled when they are first called, and inductor's cache must know whose they are
    with inductor.patch(custom_partitioner_fn=partition):
        return compile_fx_inner(decomposed(module), inputs, **options)


def interpret_inner(partition: Partition, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """Return a forward or a backward that torch runs operation by operation."""
    return make_boxed_func(decomposed(module).forward)


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
