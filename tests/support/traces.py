"""Traces written by hand: events as torch's profiler exports them."""

from __future__ import annotations

from typing import Any

from actnn.profiling import trace

THREAD = 1


class Trace:
    """A trace that grows event by event."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def span(self, name: str, start: float, end: float, sequence: int | None = None, thread: int = THREAD) -> None:
        arguments = {} if sequence is None else {"Sequence number": sequence}
        self.events.append(
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": name,
                "ts": start,
                "dur": end - start,
                "tid": thread,
                "args": arguments,
            }
        )

    def node(self, name: str, start: float, end: float, sequence: int) -> None:
        """Run a node of backward: its span has no number, the function in it has."""
        self.span(f"{trace.NODE}{name}", start, end)
        self.span(name, start + 0.5, end - 0.5, sequence)

    def annotate(self, kind: str, value: object, start: float, end: float | None = None) -> None:
        self.span(trace.annotation(kind, value), start, start if end is None else end)

    def take(self, time: float, address: int, nbytes: int, thread: int = THREAD) -> None:
        arguments = {"Device Type": 0, "Addr": address, "Bytes": nbytes}
        self.events.append({"ph": "i", "name": trace.MEMORY, "ts": time, "tid": thread, "args": arguments})

    def give_back(self, time: float, address: int, nbytes: int) -> None:
        self.take(time, address, -nbytes)

    def read(self) -> trace.Step:
        return trace.read({"traceEvents": self.events})


def training_step() -> Trace:
    """Return a step of two layers: conv keeps a code of 100 bytes, its backward decodes it and takes a workspace."""
    made = Trace()
    made.annotate(trace.PHASE, "forward", 0, 100)
    made.annotate(trace.PHASE, "backward", 100, 200)
    made.annotate(trace.PHASE, "optimizer", 200, 210)
    made.annotate(trace.LAYER, trace.ROOT, 1, 90)
    made.annotate(trace.LAYER, "conv", 2, 40)
    made.take(3, 10, 100)
    made.annotate(trace.CODE, 10, 4)
    made.annotate(trace.SAVED, 10, 4.5)
    made.span("ConvolutionFunction", 5, 30, sequence=1)
    made.span("aten::conv2d", 6, 20, sequence=1)
    made.take(7, 20, 1000)
    made.take(8, 30, 300)
    made.give_back(9, 30, 300)
    made.annotate(trace.LAYER, "relu", 50, 60)
    made.span("aten::relu", 51, 59, sequence=2)
    made.take(52, 40, 1000)
    made.annotate(trace.SAVED, 40, 53)
    made.give_back(70, 20, 1000)
    made.node("ReluBackward0", 110, 130, sequence=2)
    made.take(115, 50, 1000)
    made.annotate(trace.GRADIENT, 50, 141)
    made.give_back(132, 40, 1000)
    made.node("ConvolutionFunctionBackward", 140, 190, sequence=1)
    made.annotate(trace.DECODE, "conv", 145, 150)
    made.take(146, 60, 2000)
    made.span("aten::convolution_backward", 155, 170)
    made.take(156, 70, 500)
    made.take(157, 80, 64)
    made.give_back(169, 70, 500)
    made.give_back(171, 60, 2000)
    made.take(172, 90, 32)
    made.give_back(173, 90, 32)
    made.give_back(191, 10, 100)
    made.give_back(192, 50, 1000)
    made.annotate(trace.PARAMETER_GRADIENT, 80, 193)
    made.give_back(195, 80, 64)
    return made
