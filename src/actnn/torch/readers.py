"""Who reads a tensor last: whether a layer may write its output over its input.

NOTE [Last reader]
A layer overwrites its input where nobody can read that again, which is proved at each call:
1. The input is the result of a recorded operation, lies densely on the host, and is a plain tensor to which its user
   attached nothing. Of its memory no other tensor holds any part, and nobody the memory itself, so there is no view of
   it and no operation saved its values; of the tensor no C++ code holds any reference, so no operation saved it, and no
   graph hands it on; and nobody holds it weakly.
2. The layer was called by ``layer(x)`` in a function of Python, without hooks, which would see the input afterwards;
   those of a profiler say that they do not (``release``).
3. In that function ``x`` is either the result of a call, which only the call of the layer holds, or a local variable
   that no instruction can read before another value is put there, whichever way the function goes on: through branches
   and loops, and where an exception is caught (``callers``).
4. The tensor has as many references as the call itself makes, and one more for the variable: no list, attribute, hook,
   closure, generator or caller further up holds it.
5. No debugger watches the functions of this thread, whose user would see the variable, and no compiler evaluates them,
   under which a call holds its arguments more often.

What the instructions of a call tell is decided at its first call and remembered by the layer's site; everything else is
asked of each call. Where anything differs from what is known, and with an interpreter whose instructions are not known
(``instructions``), nothing is overwritten. What no count tells is a function further in that looks at the variables of
its caller, as a logger of frames does: it sees a variable that is read no more overwritten.
"""

from __future__ import annotations

import sys
from functools import cache
from itertools import chain
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from actnn.torch.callers import holds, observed
from actnn.torch.holders import LEAST_BYTES, alone
from actnn.torch.instructions import TEMPORARY, VARIABLE, call_at
from actnn.torch.layers.base import Compressed
from actnn.torch.release import INNER, callers, release, watched


def overwrites(layer: Compressed, x: Tensor, references: int, starred: bool = False) -> bool:
    """Tell whether a layer may write over its input, of which its ``forward`` counted the references.

    Called by that ``forward``, whose one variable that holds the input is its parameter, or, where that is ``starred``,
    one that it took from there.
    """
    if (
        not layer.site.session.policy.overwrite
        or type(x) is not Tensor
        or x.layout is not torch.strided
        or x.nbytes < LEAST_BYTES
        or x.device.type != "cpu"
        or x.is_leaf
        or x.__dict__
        or not alone(x)
        or observed()
    ):
        return False
    frame, hooked = caller(layer)
    if frame is None:
        return False
    code, place = frame.f_code, frame.f_lasti
    plans, key = layer.site.plans, (id(code), place)
    known = plans.get(key)
    # an address may belong to another function by now
    if known is None or known[0] is not code:
        known = layer.site.remember(key, (code, call_at(code, place)))
    call = known[1]
    if call is None or references != references_of(call.kind, starred, hooked):
        return False
    return holds(frame, call, layer, x)


def release_read(layer: Compressed, x: Tensor, references: int) -> None:
    """Give back the memory of an input that a layer has read, if only variables further up hold it (``release``).

    Called by the ``forward`` of the layer as ``overwrites`` is.
    """
    if not layer.site.session.policy.overwrite or type(x) is not Tensor:
        return
    frame, hooked = caller(layer)
    if frame is not None:
        levels, expected = chain([(frame, hooked)], callers(frame.f_back)), references_of(VARIABLE, False, hooked)
        release(layer, x, references, expected, levels, layer.site.plans)


def caller(layer: Any) -> tuple[FrameType | None, bool]:
    """Return the frame that called a layer whose ``forward`` calls ``overwrites``, and whether hooks ran.

    There is none where hooks would see the input.
    """
    frame = sys._getframe(3)
    hooked = frame.f_code is INNER
    if hooked and frame.f_back is not None:
        frame = frame.f_back
    for code in MACHINERY:
        if frame.f_code is not code or frame.f_back is None:
            return None, hooked
        frame = frame.f_back
    return None if hooked and watched(layer) else frame, hooked


# how a call of a converted layer arrives at its forward; with hooks there is one more (``release.INNER``)
MACHINERY = tuple(
    function.__code__ for function in (nn.Module._call_impl, nn.Module._wrapped_call_impl, Compressed.__call__)
)


class Probe(Compressed, nn.Identity):
    """A layer that counts the references of its input as others do."""

    plain = nn.Identity

    def __init__(self) -> None:
        nn.Identity.__init__(self)
        self.site: Any = SimpleNamespace(
            session=SimpleNamespace(over=False, store=SimpleNamespace(keeps_in_place=True))
        )
        self.count = 0

    def forward(self, input: Tensor) -> Tensor:
        """Note how many references there are."""
        self.note(self, input, sys.getrefcount(input))
        return torch.empty(0)

    @staticmethod
    def note(layer: Probe, x: Tensor, references: int, starred: bool = False) -> bool:
        """Stand in the place of ``overwrites``."""
        layer.count = references
        return False


class StarredProbe(Probe):
    """The same of a layer whose forward takes whatever it is given."""

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """Note how many references there are."""
        first = arguments[0] if arguments else next(iter(options.values()))
        self.note(self, first, sys.getrefcount(first), starred=True)
        return torch.empty(0)


@cache
def references_of(kind: str, starred: bool, hooked: bool) -> int:
    """Return how many references a tensor has in the ``forward`` of a layer that was called with it."""
    probe = StarredProbe() if starred else Probe()
    if hooked:
        probe.register_forward_hook(lambda *_: None)
    if kind == TEMPORARY:
        probe(torch.empty(0))
    else:
        x = torch.empty(0)
        x = probe(x)
    return probe.count
