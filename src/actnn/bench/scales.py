"""Scales of channels that a later normalisation undoes: what noise in their gradients means.

Where the output of a BatchNorm goes through a ReLU and a depthwise convolution into another BatchNorm, that one divides
by whatever gamma and beta of a channel were multiplied by together: f(s γ, s β) = f(γ, β) for s > 0. Along (γ, β) the
loss is level, and the exact gradient, which lies across it, has no part there: where beta is small, gamma has hardly
any gradient. Noise beside that is boundless, and tells nothing: a step along (γ, β) changes no output of the network
to first order. So the gradient of such a pair is turned into these two axes. Across, it is a gradient as any other,
with a bar like any other; along, noise is told as a share of the sampling variance of the whole, and of the pair's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

# of the squared gradient of gamma and beta, a scale that is undone has at most so much along them
MOST_ALONG = 0.01


class Pair(NamedTuple):
    """Gamma and beta of a BatchNorm by name, and where they point in each channel's plane."""

    gamma: str
    beta: str
    cosine: Tensor
    sine: Tensor

    @property
    def along(self) -> str:
        """The name of the part of the gradient along both, which changes nothing."""
        return f"{self.gamma} along beta"

    @property
    def across(self) -> str:
        """The name of the part of the gradient across both."""
        return f"{self.gamma} across beta"

    def parts(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the parts of a gradient by name."""
        of_gamma, of_beta = found[self.gamma], found[self.beta]
        return {
            self.along: self.cosine * of_gamma + self.sine * of_beta,
            self.across: self.cosine * of_beta - self.sine * of_gamma,
        }


def undone(model: Any, exact: Mapping[str, Tensor]) -> list[Pair]:
    """Return the pairs whose scale a later normalisation undoes, as their exact gradient tells."""
    found = []
    for name, module in model.named_modules():
        gamma, beta = f"{name}.weight", f"{name}.bias"
        if is_batch_norm(module) and gamma in exact and beta in exact:
            weight, bias = module.weight.detach(), module.bias.detach()
            length = (weight.square() + bias.square()).sqrt().clamp_min(1e-30)
            pair = Pair(gamma, beta, weight / length, bias / length)
            parts = pair.parts(exact)
            along, across = (float(parts[part].square().sum()) for part in (pair.along, pair.across))
            if along < MOST_ALONG * (along + across):
                found.append(pair)
    return found


def is_batch_norm(module: Any) -> bool:
    """Tell whether a module normalises over a batch, and scales channels."""
    from torch import nn

    return isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)) and module.affine


def turned(found: Mapping[str, Tensor], pairs: list[Pair]) -> dict[str, Tensor]:
    """Return a gradient with each pair's in its parts along and across; its square stays the same."""
    inside = {name for pair in pairs for name in (pair.gamma, pair.beta)}
    result = {name: own for name, own in found.items() if name not in inside}
    for pair in pairs:
        result |= pair.parts(found)
    return result
