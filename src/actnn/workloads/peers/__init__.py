"""Methods of others as contestants, each written by us from its paper: a file and a row here.

None of them is its authors' code. What a file leaves out of its paper, or adds where the paper is silent, it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from actnn.errors import UnsupportedError


@dataclass(frozen=True)
class Peer:
    """A method: the function ``module:function`` that takes a model and returns it as that method trains it.

    ``bits`` is how wide its codes are, None where it makes none; ``lossless`` whether its gradient is exact;
    ``colour`` and ``marker`` are how pictures show it.
    """

    target: str
    summary: str
    colour: str
    marker: str
    bits: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def lossless(self) -> bool:
        """Whether its gradient is that of exact training."""
        return self.bits is None

    def applied(self, model: Any, seed: int = 0) -> Any:
        """Return a model of torch as this method trains it; names and values of its parameters stay."""
        module, _, name = self.target.partition(":")
        apply: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), name)
        return apply(model, seed=seed, **self.options)


PEERS: Mapping[str, Peer] = {
    "original": Peer("original:original", "ActNN: 2 bits a group, one code a reader", "#a6761d", "h", bits=2),
    "blpa4": Peer("blpa:blpa", "BLPA: pre-activations in 4 bits", "#e7298a", "d", bits=4, options={"bits": 4}),
    "blpa8": Peer("blpa:blpa", "BLPA: pre-activations in 8 bits", "#f781bf", "d", bits=8, options={"bits": 8}),
    "gact": Peer("gact:gact", "GACT: whatever autograd saves, 4 bits on average", "#1b9e77", "p", bits=4),
    "mesa": Peer("mesa:mesa", "Mesa: 8 bits, running ranges of heads", "#7570b3", "H", bits=8),
    "division": Peer("division:division", "DIVISION: means of blocks, and 2 bits for the rest", "#66a61e", "8", bits=2),
    "few-bits": Peer("few_bits:few_bits", "derivatives of GELU and SiLU in 3 bits", "#e6ab02", "1", bits=3),
    "dtr": Peer("rematerialization:rematerialized", "DTR by blocks: half of what is kept", "#a65628", "2"),
    "checkpoint-whole": Peer("whole:whole", "checkpointing: the whole network at once", "#b2912f", "3"),
    "checkpoint-selective": Peer(
        "selective:selective", "checkpointing of blocks that keeps what products gave", "#d8b365", "4"
    ),
    "compile-budget": Peer("compile_budget:compile_budget", "torch.compile with half the memory", "#377eb8", "+"),
    "save-on-cpu": Peer("host:save_on_cpu", "what autograd saves waits on the host", "#999999", "|"),
}


def is_to_prepare(model: Any) -> bool:
    """Tell whether the method of a model wants to see a step before training begins."""
    return hasattr(model, "prepare_peer")


def prepare(model: Any, backward: Callable[[], object]) -> None:
    """Show the method of a model a step on a small batch, which may be taken many times."""
    model.prepare_peer(backward)


def applied(name: str, framework: str, model: Any, seed: int) -> Any:
    """Return a model as the peer of a name trains it."""
    if framework != "torch":
        raise UnsupportedError(f"the contestant {name} is written for torch: leave it out, or use --framework torch.")
    return PEERS[name].applied(model, seed)
