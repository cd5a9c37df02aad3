"""Networks that learn from images without labels: MoCo v2 (Chen et al., 2020) and BYOL (Grill et al., 2020).

Both compare two views of each image, of which a slowly following copy of the network sees one. Shuffled BatchNorm,
which keeps MoCo's devices from telling its keys apart, has no place in one process; views are not blurred.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from actnn.errors import ConfigError
from actnn.workloads import models

if TYPE_CHECKING:
    from torch import Tensor, nn

# what an image is described by, and what views are compared by
FEATURES, COMPARED, HIDDEN = 128, 64, 256
QUEUE, TEMPERATURE = 1024, 0.2
# how much of itself the following network keeps in a step
MOMENTUM = 0.99


def build(name: str, channels: int) -> nn.Module:
    """Return ``moco:ENCODER`` or ``byol:ENCODER``; the encoder is any model for images."""
    method, colon, encoder = name.partition(":")
    if method not in METHODS or not colon:
        expected = " or ".join(f"{each}:MODEL" for each in METHODS)
        raise ConfigError(f"{name!r} names no way to learn without labels: expected {expected}.")
    made: nn.Module = types()[METHODS[method]](models.build(encoder, classes=FEATURES, channels=channels))
    return made


METHODS: Mapping[str, str] = {"moco": "MomentumContrast", "byol": "OwnLatent"}


def views(images: Tensor) -> Tensor:
    """Return a random view of each image: a part, mirrored or not, brighter or darker, sometimes without colours."""
    import torch
    from torch.nn import functional

    count, channels = images.shape[:2]
    side = (0.2 + 0.8 * torch.rand(count)).sqrt()
    aspect = torch.exp((torch.rand(count) - 0.5) * 0.57)
    scales = torch.stack((side * aspect, side / aspect)).clamp_(max=1)
    shifts = (1 - scales) * (2 * torch.rand(2, count) - 1)
    turned = torch.where(torch.rand(count) < 0.5, -1.0, 1.0)
    grids = torch.zeros(count, 2, 3)
    grids[:, 0, 0], grids[:, 1, 1] = scales[0] * turned, scales[1]
    grids[:, :, 2] = shifts.T
    places = functional.affine_grid(grids, list(images.shape), align_corners=False)
    seen = functional.grid_sample(images, places, padding_mode="reflection", align_corners=False)
    contrast, bright = (0.4 * (2 * torch.rand(count, 1, 1, 1) - 1) for _ in range(2))
    seen = seen * (1 + contrast) + bright
    if channels > 1:
        grey = seen.mean(1, keepdim=True).expand_as(seen)
        seen = torch.where(torch.rand(count, 1, 1, 1) < 0.2, grey, seen)
    return seen


@cache
def types() -> dict[str, Any]:
    """Return the classes by name; they are made on first use because importing a benchmark must not import torch."""
    import torch
    from torch import nn
    from torch.nn import functional

    def head(inputs: int, norm: bool) -> nn.Module:
        norms = [nn.BatchNorm1d(HIDDEN)] * norm
        return nn.Sequential(nn.Linear(inputs, HIDDEN), *norms, nn.ReLU(), nn.Linear(HIDDEN, COMPARED))

    class Followed(nn.Module):
        """An encoder with a head, and a copy of both that follows them."""

        def __init__(self, encoder: nn.Module, norm: bool) -> None:
            super().__init__()
            self.encoder, self.head = encoder, head(FEATURES, norm)
            self.following = copy.deepcopy(nn.Sequential(self.encoder, self.head)).requires_grad_(False)

        @torch.no_grad()
        def follow(self) -> None:
            own = (*self.encoder.parameters(), *self.head.parameters())
            for behind, ahead in zip(self.following.parameters(), own, strict=True):
                behind.lerp_(ahead, 1 - MOMENTUM)

        def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
            """Return the loss of two views or, of images alone, what describes them."""
            if second is None:
                described: Tensor = self.encoder(first)
                return described
            self.follow()
            return self.compared(first, second)

        def compared(self, first: Tensor, second: Tensor) -> Tensor:
            raise NotImplementedError

    class MomentumContrast(Followed):
        """MoCo v2: a view is told from those of other images, of which the last many wait in a queue."""

        def __init__(self, encoder: nn.Module) -> None:
            super().__init__(encoder, norm=False)
            self.register_buffer("queue", functional.normalize(torch.randn(QUEUE, COMPARED)))
            self.register_buffer("place", torch.zeros((), dtype=torch.long))

        def compared(self, first: Tensor, second: Tensor) -> Tensor:
            asked = functional.normalize(self.head(self.encoder(first)))
            with torch.no_grad():
                keys = functional.normalize(self.following(second))
            others: Any = self.queue
            scores = torch.cat(((asked * keys).sum(1, keepdim=True), asked @ others.clone().T), 1)
            self.remember(keys)
            return functional.cross_entropy(scores / TEMPERATURE, torch.zeros(len(scores), dtype=torch.long))

        def remember(self, keys: Tensor) -> None:
            queue: Any = self.queue
            place: Any = self.place
            places = (place + torch.arange(len(keys))) % QUEUE
            queue[places] = keys.to(queue.dtype)
            place.add_(len(keys)).remainder_(QUEUE)

    class OwnLatent(Followed):
        """BYOL: what the following network makes of a view is predicted from the other view, both ways."""

        def __init__(self, encoder: nn.Module) -> None:
            super().__init__(encoder, norm=True)
            self.predictor = head(COMPARED, norm=True)

        def compared(self, first: Tensor, second: Tensor) -> Tensor:
            return self.one_way(first, second) + self.one_way(second, first)

        def one_way(self, seen: Tensor, other: Tensor) -> Tensor:
            with torch.no_grad():
                wanted = self.following(other)
            predicted = self.predictor(self.head(self.encoder(seen)))
            return 2 - 2 * functional.cosine_similarity(predicted, wanted).mean()

    return {"MomentumContrast": MomentumContrast, "OwnLatent": OwnLatent}
