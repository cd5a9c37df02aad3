"""What all compressed layers share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actnn.errors import UnsupportedError
from actnn.model.layers import CompressedLayer
from actnn.session.site import Site
from actnn.torch.counting import hooks_of_others
from actnn.torch.door.mode import closed
from actnn.torch.tensors import ARRAYS
from actnn.torch.traced import symbolic, tell_of_lost_codes, traced, traced_with


class Compressed(CompressedLayer):
    """A compressed layer of torch, whose parameters are ``weight`` and ``bias`` where it has any."""

    tensors = ARRAYS
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the layer with the functional door closed: what it does is its own."""
        session = self.site.session
        seen = arguments and type(arguments[0]) is not Tensor and symbolic(arguments[0])
        if session.over and not (seen or traced()):
            session.begin_late()
        # tickets of a store tell the copies that saved-tensor hooks make of what they stand for, by functions that must
        # be seen; so must all be that a compiler or torch.fx records
        if seen or torch.compiler.is_dynamo_compiling() or (not session.store.keeps_in_place and hooks_of_others()):
            return super().__call__(*arguments, **options)  # type: ignore[misc]
        with closed():
            return super().__call__(*arguments, **options)  # type: ignore[misc]

    @classmethod
    def adopt(cls, layer: Any, site: Site) -> None:
        """Turn a plain layer into this one; parameters, buffers, hooks and everything that refers to it stay."""
        super().adopt(layer, site)
        # torch.fx asks each layer for it, and does not look into those of torch
        layer.__dict__["__module__"] = cls.plain.__module__

    def release(self) -> None:
        """Turn this layer back into the plain one."""
        self.__dict__.pop("__module__", None)
        super().release()

    @property
    def qconfig(self) -> Any:
        """What tools that quantise weights look for: a converted layer has none."""
        raise AttributeError("qconfig")

    @qconfig.setter
    def qconfig(self, settings: Any) -> None:
        raise UnsupportedError(
            f"{self.site.name!r} is a converted layer, and torch's quantisation takes layers by their exact type: it "
            "would be skipped. Quantise first, or prepare for it, and convert what that returns: "
            "actnn.QModule(prepare_qat(model))."
        )

    def plainly(self, *arguments: Any) -> Tensor:
        """Return what the plain layer makes of an input."""
        y: Tensor = self.plain.forward(self, *arguments)
        return y

    def weight_and_bias(self) -> tuple[Any, Any]:
        """Return both, None where the layer has none; torch's way to a parameter takes several times as long."""
        parameters = self._parameters
        if "weight" in parameters and "bias" in parameters:
            return parameters["weight"], parameters["bias"]
        # somebody may have put a plain tensor in a parameter's place
        layer: Any = self
        return layer.weight, layer.bias

    def records(self, x: Tensor) -> bool:
        """Tell whether autograd will want a gradient through this call, and codes are to serve it."""
        if not (torch.is_grad_enabled() and self.site.compresses) or (type(x) is not Tensor and symbolic(x)):
            return False
        if traced_with(x):
            tell_of_lost_codes()
            return False
        # what lies sparsely, or in an order of oneDNN's, has no memory that could be coded
        if x.numel() == 0 or x.layout is not torch.strided:
            return False
        if x.requires_grad:
            return True
        return any(own is not None and own.requires_grad for own in self._parameters.values())
