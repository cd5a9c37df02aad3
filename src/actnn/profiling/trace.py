"""A profiler's trace, read: when memory was taken and given back, and what ran meanwhile.

The trace is a Chrome trace as torch.profiler exports it. What Tracer adds to it are annotations named
``actnn|kind|…`` (see ``annotation``): spans of layers and phases, and marks that say what an address holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MEMORY = "[memory]"
NODE = "autograd::engine::evaluate_function: "
SEPARATOR = "|"
PREFIX = "actnn"
# the name of a whole model, whose path is empty
ROOT = "model"

# kinds of annotations
PHASE = "phase"
LAYER = "layer"
DECODE = "decode"
CODE = "code"
SAVED = "saved"
GRADIENT = "gradient"
PARAMETER_GRADIENT = "parameter gradient"
STORED = "stored"
HELD = "held"
OUTSIDE = "outside"

MARKS = (CODE, SAVED, GRADIENT, PARAMETER_GRADIENT, STORED, HELD, OUTSIDE)


def annotation(kind: str, value: object) -> str:
    """Return the name of an annotation."""
    return SEPARATOR.join((PREFIX, kind, str(value)))


@dataclass(eq=False)
class Span:
    """Something that ran: an operator, a node of backward, or, with a ``kind``, an annotation and its ``value``."""

    start: float
    end: float
    thread: int
    name: str
    sequence: int | None = None
    kind: str | None = None
    value: str = ""

    @property
    def is_node(self) -> bool:
        """Whether autograd ran a node of the graph here."""
        return self.name.startswith(NODE)

    @property
    def is_operator(self) -> bool:
        """Whether it is one of the framework's operators, rather than a layer, a node or a function of ours."""
        return self.kind is None and "::" in self.name and not self.is_node


class Holder(NamedTuple):
    """A variable that was seen to hold a block: when, at which look at all variables, and where that is."""

    time: float
    look: int
    place: str


@dataclass(eq=False)
class Block:
    """Memory from its allocation to its release (``end`` infinite where it outlives the step).

    ``layer`` and ``phase`` tell where it was taken, ``operator`` and ``node`` the spans within which that happened,
    ``function`` what the node called, ``decoding`` whether to hold decoded values. ``marks`` tells what it was seen to
    hold, and in which layer; ``held`` which variables of the user's functions were seen to hold it.
    """

    address: int
    nbytes: int
    start: float
    end: float = float("inf")
    layer: str = ""
    phase: str = ""
    operator: Span | None = None
    node: Span | None = None
    function: Span | None = None
    decoding: bool = False
    marks: dict[str, str] = field(default_factory=dict)
    held: list[Holder] = field(default_factory=list)


@dataclass
class Step:
    """One traced step: its blocks, when each layer ran, its phases, and samples of what lies outside the framework.

    ``outside`` holds (time, bytes, mark) of what a store keeps in memory of its own, codes or what autograd saved,
    which counts there from the moment on that it was stored; ``stored`` is all that was taken over from the framework.
    """

    blocks: list[Block] = field(default_factory=list)
    passes: list[tuple[str, str, float, float]] = field(default_factory=list)
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    outside: list[tuple[float, int, str]] = field(default_factory=list)
    stored: int = 0


def read(trace: Mapping[str, Any]) -> Step:
    """Return the step that a trace tells of."""
    spans, instants = parse(trace["traceEvents"])
    layers = layers_of_sequences(spans)
    step = Step(phases={span.value: (span.start, span.end) for span in spans if span.kind == PHASE})
    sweep = _Sweep(step, layers)
    for event in ordered(spans, instants):
        sweep.take(*event)
    return step


@dataclass(frozen=True)
class Instant:
    """Memory taken (``nbytes`` above 0) or given back."""

    time: float
    thread: int
    address: int
    nbytes: int


def parse(events: Iterable[Mapping[str, Any]]) -> tuple[list[Span], list[Instant]]:
    """Divide the events of a trace into spans and allocations in host memory."""
    spans, instants = [], []
    for event in events:
        arguments = event.get("args", {})
        if event.get("name") == MEMORY:
            if arguments.get("Device Type", 0) == 0:
                instants.append(Instant(event["ts"], event["tid"], arguments["Addr"], arguments["Bytes"]))
        elif event.get("ph") == "X" and event.get("cat") in ("cpu_op", "user_annotation"):
            span = Span(event["ts"], event["ts"] + event["dur"], event["tid"], event["name"])
            span.sequence = arguments.get("Sequence number")
            if span.name.startswith(PREFIX + SEPARATOR):
                _, span.kind, span.value = span.name.split(SEPARATOR, 2)
            spans.append(span)
    return spans, instants


def ordered(spans: Iterable[Span], instants: Iterable[Instant]) -> Iterator[tuple[str, Any]]:
    """Yield what happened in order of time: spans that begin, marks and memory within them, spans that end."""
    moments: list[tuple[float, int, float, str, Any]] = []
    for span in spans:
        if span.kind in MARKS:
            moments.append((span.start, 1, 0.0, "mark", span))
        else:
            # of two that begin together the longer one holds the other, and ends after it
            moments.append((span.start, 0, -span.end, "begin", span))
            moments.append((span.end, 2, -span.start, "end", span))
    moments += [(instant.time, 1, 0.0, "memory", instant) for instant in instants]
    for *_, what, subject in sorted(moments, key=lambda moment: moment[:3]):
        yield what, subject


def layers_of_sequences(spans: Iterable[Span]) -> dict[int, str]:
    """Return the layer whose forward made each node of the graph, by the node's number.

    Operators that make no node carry the number of the next one: the last to carry a number made its node. A node
    whose span has no number gets that of what runs in it.
    """
    layers: dict[int, str] = {}
    stacks: dict[int, list[Span]] = {}
    for what, span in ordered(spans, ()):
        stack = stacks.setdefault(span.thread, [])
        if what == "begin":
            if stack and stack[-1].is_node and stack[-1].sequence is None:
                stack[-1].sequence = span.sequence
            stack.append(span)
            if span.sequence is not None and not any(outer.is_node for outer in stack):
                layers[span.sequence] = innermost_layer(stack, {})
        elif what == "end":
            stack.remove(span)
    return layers


def innermost_layer(stack: list[Span], layers: Mapping[int, str]) -> str:
    """Return the layer that works at the end of a stack of spans, in forward or in backward."""
    for span in reversed(stack):
        if span.kind == LAYER:
            return span.value
        if span.is_node and (layer := layers.get(span.sequence or -1)):
            return layer
    return ""


class _Sweep:
    """Goes through a trace once, with what runs on every thread and what is allocated."""

    def __init__(self, step: Step, layers: Mapping[int, str]) -> None:
        self._step, self._layers = step, layers
        self._stacks: dict[int, list[Span]] = {}
        self._live: dict[int, Block] = {}

    def take(self, what: str, subject: Any) -> None:
        """Take note of one event."""
        stack = self._stacks.setdefault(subject.thread, [])
        if what == "begin":
            stack.append(subject)
            self._note_pass(subject, stack)
        elif what == "end":
            stack.remove(subject)
        elif what == "mark":
            self._mark(subject, stack)
        elif subject.nbytes > 0:
            self._allocate(subject, stack)
        elif (block := self._live.pop(subject.address, None)) is not None:
            block.end = subject.time

    def _note_pass(self, span: Span, stack: list[Span]) -> None:
        if span.kind == LAYER:
            self._step.passes.append((span.value, phase_of(stack), span.start, span.end))
        elif span.is_node and (layer := self._layers.get(span.sequence or -1)):
            self._step.passes.append((layer, phase_of(stack), span.start, span.end))

    def _allocate(self, instant: Instant, stack: list[Span]) -> None:
        block = Block(instant.address, instant.nbytes, instant.time)
        block.layer, block.phase = innermost_layer(stack, self._layers), phase_of(stack)
        block.operator = outermost_operator(stack)
        node = next((index for index in reversed(range(len(stack))) if stack[index].is_node), None)
        if node is not None:
            block.node, block.function = stack[node], next(iter(stack[node + 1 :]), None)
        block.decoding = any(span.kind == DECODE for span in stack)
        if (unseen := self._live.get(instant.address)) is not None:
            # the profiler does not see what other threads give back
            unseen.end = instant.time
        self._live[instant.address] = block
        self._step.blocks.append(block)

    def _mark(self, span: Span, stack: list[Span]) -> None:
        if span.kind == OUTSIDE:
            mark, _, nbytes = span.value.partition(SEPARATOR)
            self._step.outside.append((span.start, int(nbytes), mark))
            return
        address, *holder = span.value.split(SEPARATOR, 2)
        if (block := self._live.get(int(address))) is None:
            return
        if span.kind == HELD:
            look, place = holder
            block.held.append(Holder(span.start, int(look), place))
        elif span.kind == STORED:
            self._live.pop(block.address).end = span.start
            self._step.stored += block.nbytes
        else:
            block.marks.setdefault(span.kind or "", innermost_layer(stack, self._layers) or block.layer)


def phase_of(stack: list[Span]) -> str:
    """Return the phase of the step that a stack of spans is in."""
    return next((span.value for span in stack if span.kind == PHASE), "")


def outermost_operator(stack: list[Span]) -> Span | None:
    """Return the outermost of the operators at the end of a stack: those within it are parts of its work."""
    found = None
    for span in reversed(stack):
        if not span.is_operator:
            break
        found = span
    return found
