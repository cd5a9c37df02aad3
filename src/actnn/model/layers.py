"""Compressed layers: a site, and the way from a plain layer to this one and back."""

from __future__ import annotations

from typing import Any, ClassVar

from actnn.kernels.contract import Array
from actnn.session.session import Session
from actnn.session.site import Site
from actnn.session.tensors import Tensors
from actnn.settings import config


class CompressedLayer:
    """A layer that keeps codes: a door to an operation.

    A front end's layer derives from this class first and from its ``plain`` counterpart last.
    """

    plain: ClassVar[type[Any]]
    tensors: ClassVar[Tensors]
    normalizes: ClassVar[bool] = False
    # bits that its codes have more than others
    extra: ClassVar[float] = 0.0
    site: Site
    training: bool

    def __init__(self, *args: Any, group: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begin_alone(group)

    def begin_alone(self, group: int = 0) -> None:
        """Give a layer that was made by hand a session of its own, until QModule takes it in."""
        session = Session(config.policy(), stream=config.next_stream(), process=self.tensors.process)
        self.site = session.site(type(self).__name__, type(self).__name__, group, self.normalizes, self.extra)

    @classmethod
    def adopt(cls, layer: Any, site: Site) -> None:
        """Turn a plain layer into this one; parameters, buffers, hooks and everything that refers to it stay."""
        layer.__class__ = cls
        layer.site = site

    def release(self) -> None:
        """Turn this layer back into the plain one."""
        del self.site
        kind = type(self)
        own = next(base for base in kind.__mro__ if "plain" in vars(base))
        if kind is not own:
            # it was parametrised since: torch derived a class from this one, and that has to derive from the plain one
            bases = tuple(self.plain if base is own else base for base in kind.__bases__)
            parts = {name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")}
            self.__class__ = type(kind.__name__.replace(own.__name__, self.plain.__name__), bases, parts)
        else:
            self.__class__ = self.plain

    @classmethod
    def reason_to_leave(cls, layer: Any) -> str | None:
        """Return why a plain layer of this kind stays as it is; None where it is converted."""
        return None

    def records(self, x: Array) -> bool:
        """Tell whether autograd will want a gradient through this call, and codes are to serve it."""
        raise NotImplementedError
