"""What functions without a rule have autograd save, as codes: ``config.other_bits``.

NOTE [Other functions]
1. A saved-tensor hook is in place while the model's forward runs in training, unless somebody else's is.
2. What our own functions save is left to them; who saves, the calling code tells.
3. Parameters, buffers, the model's inputs, which its user holds anyway, small tensors, all that is no float of up to 32
   bits, and views that are larger than their memory stay as they are. So does what a module saves that is to stay
   exact, and a function whose gradient is too sensitive (operations/others.py).
4. Inside of checkpointed blocks the hooks of checkpointing are in place: what is computed anew has no such codes.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from actnn.operations.others import Coded, keep_other, tensors_in
from actnn.session.saved import Left
from actnn.torch.counting import BETWEEN, DOOR, OWN, Count
from actnn.torch.door.mode import Door
from actnn.torch.memory import address, has_memory
from actnn.torch.tensors import ARRAYS, FLOATING

# the name of what autograd functions of users save
UNNAMED = "function"


class OtherCodes(Count):
    """Codes what functions without a rule have autograd save while it is entered; counts all of it if asked to."""

    def __init__(self, model: nn.Module, door: Door, counts: bool) -> None:
        super().__init__(model, door)
        self._counts = counts
        self._own = {address(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def takes(self, inputs: Any) -> None:
        """Leave the model's inputs as they are."""
        self._own |= {address(x) for x in tensors_in(inputs, Tensor)}

    def _pack(self, tensor: Tensor) -> Any:
        coded = self._coded(tensor)
        if coded is None:
            return self._note(tensor) if self._counts else Left.of(ARRAYS, tensor)
        if self._counts:
            for own in coded.kept.tensors:
                if own is not None:
                    self._note_code(own)
        return coded

    def _unpack(self, kept: Left | Coded) -> Tensor:
        x: Tensor = kept.value() if isinstance(kept, Coded) else kept.unchanged(ARRAYS)
        return x

    def _coded(self, x: Tensor) -> Coded | None:
        door, frames = self._door, self._door.frames
        if not frames or not frames[-1].active or door.sensitive or self._stays(x) or ours():
            return None
        function = door.calling
        name = UNNAMED if function is None else getattr(function, "__name__", str(function)).strip("_")
        with torch.no_grad():
            return keep_other(ARRAYS, x.detach(), door.session, frames[-1].name, name)

    def _stays(self, x: Tensor) -> bool:
        if x.dtype not in FLOATING or not has_memory(x) or torch._C._is_torch_function_all_disabled():
            return True
        memory = x.untyped_storage()
        return ARRAYS.nbytes(x) > memory.nbytes() or memory.data_ptr() in self._own


def ours() -> bool:
    """Tell whether an operation of ours has autograd save something now."""
    # the hook itself, and what called it
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename in BETWEEN:
        frame = frame.f_back
    return bool(frame.f_code.co_filename.startswith(OWN)) and frame.f_code is not DOOR
