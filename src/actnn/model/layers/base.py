"""What all compressed layers share."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any, ClassVar

from actnn.kernels.contract import Array
from actnn.operations.kept import Kept, encode, itself
from actnn.session import tagging
from actnn.session.session import Session
from actnn.session.site import Readers, Site
from actnn.session.tensors import Tensors, check_floating
from actnn.settings import config


class CompressedLayer:
    """A site, and the way from a plain layer to this one and back.

    A front end's layer derives from this class first and from its ``plain`` counterpart last.
    """

    plain: ClassVar[type[Any]]
    tensors: ClassVar[Tensors]
    normalizes: ClassVar[bool] = False
    site: Site
    training: bool

    def __init__(self, *args: Any, group: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begin_alone(group)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer; its input may be named as the plain layer names it."""
        if not args:
            _, name, *_ = signature(self.plain.forward).parameters
            if name in kwargs:
                args = (kwargs.pop(name),)
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def begin_alone(self, group: int = 0) -> None:
        """Give a layer that was made by hand a session of its own, until QModule takes it in."""
        session = Session(config.policy(), stream=config.next_stream())
        self.site = session.site(type(self).__name__, type(self).__name__, group, self.normalizes)

    @classmethod
    def adopt(cls, layer: Any, site: Site) -> None:
        """Turn a plain layer into this one; parameters, buffers, hooks and everything that refers to it stay."""
        layer.__class__ = cls
        layer.site = site

    def release(self) -> None:
        """Turn this layer back into the plain one."""
        del self.site
        self.__class__ = self.plain

    @classmethod
    def reason_to_leave(cls, layer: Any) -> str | None:
        """Return why a plain layer of this kind stays as it is; None where it is converted."""
        return None

    def own_parameters(self) -> Iterable[Array]:
        """Return this layer's parameters."""
        raise NotImplementedError

    def records(self, x: Array) -> bool:
        """Tell whether autograd will want a gradient through this call, and codes are to serve it."""
        tensors = self.tensors
        if not (tensors.recording() and self.site.session.policy.compress) or 0 in x.shape:
            return False
        return tensors.wants_gradient(x) or any(map(tensors.wants_gradient, self.own_parameters()))

    def check_floating(self, x: Array) -> None:
        """Raise UnsupportedError unless the dtype of an input can be coded."""
        check_floating(self.tensors, x, self.site.name)

    def counts_exact(self, x: Array) -> int:
        """Return the bytes that exact training keeps for a tensor, 0 where another reader counted it already."""
        return tagging.exact_bytes(self.tensors, x, self.site.session)

    def keep(self, x: Array, needed: bool) -> Kept | None:
        """Return the form in which an input is kept: a code, itself in evaluation, nothing where nobody needs it."""
        if not needed:
            return None
        tag = tagging.find(self.tensors, x, self.site.session) if self.training else None
        if tag is not None and tag.owner is not None:
            tag.readers.values = True
            if tag.kept is not None:
                tag.owner.read_by(self.site, self.counts_exact(x))
                shared: Kept = tag.kept
                return shared
        self.site.keeps(0, self.counts_exact(x))
        kept = encode(self.tensors, x, self.site, batched=len(x.shape) > 1) if self.training else None
        if kept is None:
            return itself(self.tensors, x, self.site)
        tagging.put(self.tensors, x, kept, self.site, Readers())
        return kept
