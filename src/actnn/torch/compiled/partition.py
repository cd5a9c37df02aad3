"""Where AOTAutograd divides a joint graph into forward and backward: what lies between the two becomes codes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch.partitioners import default_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files

from actnn.errors import SessionError
from actnn.settings import Policy
from actnn.torch.compiled.graph import JointGraph, check_static
from actnn.torch.compiled.report import GraphReport, describe
from actnn.torch.compiled.rules import RULES, Coding
from actnn.torch.compiled.values import code_flags, code_values, drop_shapes, hoist_comparisons

aten = torch.ops.aten


class Partition(CustomPartitionerFn):
    """Puts codes into a joint graph, then divides it; ``report`` tells what its forward keeps, once that is known.

    ``structure`` is the name of what Dynamo traced, and ``widths`` holds the planned ones, by the names of codes; None
    where nothing was planned.
    """

    def __init__(self, policy: Policy, bits: int, structure: str, widths: Mapping[str, int] | None) -> None:
        self._policy, self._bits, self._structure, self._widths = policy, bits, structure, widths
        self.report: GraphReport | None = None

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Return the forward, which makes codes, and the backward, which reads them."""
        static = options.get("static_lifetime_input_indices") or ()
        graph = JointGraph(gm, static)
        for node in gm.graph.nodes:
            check_static(node)
        coding = Coding(graph, self._policy, self._bits, self._widths or {})
        if self._policy.compress:
            put_codes_in(coding)
        gm.graph.lint()
        gm.recompile()
        known = {name: value for name, value in options.items() if name != "compiler"}
        forward, backward = default_partition(gm, joint_inputs, **known)
        report = describe(forward, options["num_fwd_outputs"], coding, self._structure)
        if self._widths is not None:
            check_planned(report, self._widths)
        self.report = report
        return forward, backward

    def uuid(self) -> Any:
        """Return what inductor's cache knows this by: another version of these files makes other operators."""
        return get_hash_for_files(tuple(str(path) for path in sorted(Path(__file__).parent.glob("*.py"))))


def check_planned(report: GraphReport, widths: Mapping[str, int]) -> None:
    """Raise SessionError unless every code that a forward keeps has a planned width."""
    missing = [code.of for code in report.codes if code.of not in widths]
    if missing:
        raise SessionError(
            f"a model compiled with planned widths was given a step that calibrate has not seen: {len(missing)} of the "
            f"{len(report.codes)} codes of this graph have none, such as that of {missing[0]!r}. Call calibrate(step) "
            "again, where step() runs the model in each way and on batches of each form that training will."
        )


def put_codes_in(coding: Coding) -> None:
    """Change a joint graph so that its backward reads codes."""
    graph = coding.graph
    skip_copies_of_names(graph)
    graph.graph.eliminate_dead_code()
    hoist_comparisons(graph)
    for rules in RULES:
        for node in graph.backward():
            if node.target in rules:
                rules[node.target](coding, node)
    drop_shapes(graph)
    code_flags(coding)
    code_values(coding)
    graph.graph.eliminate_dead_code()


def skip_copies_of_names(graph: JointGraph) -> None:
    """Let the backward read tensors themselves, and not other names of them."""
    names = (aten.detach.default, aten.alias.default)
    for node in graph.backward():
        for each in node.all_input_nodes:
            source = each
            while source.op == "call_function" and source.target in names:
                source = source.args[0]
            if source is not each:
                node.replace_input_with(each, source)
    for node in graph.backward():
        if node.target in names and all(user.op != "output" for user in node.users):
            graph.replace(node, node.args[0])
