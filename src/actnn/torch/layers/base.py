"""What all compressed layers share."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from actnn.core.session import Session
from actnn.core.settings import config
from actnn.core.site import Readers, Site
from actnn.torch import tags
from actnn.torch.functions.kept import Kept, encode, itself


class Compressed(nn.Module):
    """What all compressed layers share: a site, and the way from a plain layer to this one and back."""

    plain: ClassVar[type[nn.Module]]
    normalizes: ClassVar[bool] = False
    site: Site

    def __init__(self, *args: Any, group: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # a layer made by hand has a session of its own until QModule takes it in
        session = Session(config.policy(), stream=config.next_stream())
        self.site = session.site(type(self).__name__, type(self).__name__, group, self.normalizes)

    @classmethod
    def adopt(cls, layer: nn.Module, site: Site) -> None:
        """Turn a plain layer into this one; parameters, buffers, hooks and everything that refers to it stay."""
        layer.__class__ = cls
        layer.site = site

    def release(self) -> None:
        """Turn this layer back into the plain one."""
        del self.site
        self.__class__ = self.plain

    def records(self, x: Tensor) -> bool:
        """Tell whether autograd will want a gradient through this call, and codes are to serve it."""
        if not (torch.is_grad_enabled() and self.site.session.policy.compress) or x.numel() == 0:
            return False
        return x.requires_grad or any(parameter.requires_grad for parameter in self.parameters(recurse=False))

    def keep(self, x: Tensor, needed: bool) -> Kept | None:
        """Return the form in which an input is kept: a code, itself in evaluation, nothing where nobody needs it."""
        if not needed:
            return None
        session = self.site.session
        tag = tags.find(x, session) if self.training else None
        if tag is not None:
            tag.readers.values = True
            if tag.kept is not None:
                tag.owner.read_by(self.site, tags.exact_bytes(x, session))
                return tag.kept
        self.site.keeps(0, tags.exact_bytes(x, session))
        kept = encode(x, self.site, batched=x.dim() > 1) if self.training else None
        if kept is None:
            return itself(x, self.site)
        tags.put(x, kept, self.site, Readers())
        return kept
