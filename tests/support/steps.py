"""What one training step gave, as numpy arrays, and comparisons that raise."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from layer_cases import Case

Array = np.ndarray


@dataclass
class Step:
    """What one forward and backward gave: the output, gradients by name ("input" too), buffers, and all dtypes.

    Types that numpy does not have are float32 here; ``dtypes`` tells what they were.
    """

    output: Array
    gradients: dict[str, Array]
    buffers: dict[str, Array]
    dtypes: dict[str, str] = field(default_factory=dict)


def check_equal(found: Step, expected: Step) -> None:
    """Raise unless outputs, gradients and buffers are the same bit for bit."""
    same(found.output, expected.output, "output")
    check_same_names(found, expected)
    for kind in ("gradients", "buffers"):
        for name, value in getattr(expected, kind).items():
            same(getattr(found, kind)[name], value, f"{kind} of {name}")


def check_step(found: Step, expected: Step, case: Case, relative: float = 0.01) -> None:
    """Raise unless the forward is that of the plain layer and every gradient within ``relative`` of the exact one.

    The forward of norms may differ by float rounding; the gradients of lossless layers, and those of the input and the
    bias of convolutions and linear layers, may not differ by more than that either.
    """
    check_same_names(found, expected)
    if "Norm" in case.kind:
        close(found.output, expected.output, 1e-5, "output")
        for name, buffer in expected.buffers.items():
            close(found.buffers[name], buffer, 1e-5, name)
    else:
        same(found.output, expected.output, "output")
    for name, gradient in expected.gradients.items():
        exact = case.lossless or (name in ("input", "bias") and case.kind.startswith(("Conv", "Linear")))
        close(found.gradients[name], gradient, 1e-5 if exact else relative, f"gradient of {name}")


def check_same_names(found: Step, expected: Step) -> None:
    """Raise unless the same parameters got gradients, of the same types."""
    assert found.gradients.keys() == expected.gradients.keys()
    assert found.dtypes == expected.dtypes


def check_equal_gradients(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Raise unless gradients are the same bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        same(found[name], value, name)


def check_close_gradients(found: dict[str, Array], expected: dict[str, Array], relative: float) -> None:
    """Raise unless every gradient is within a part of its norm."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        close(found[name], value, relative, name)


def check_finite(gradients: dict[str, Array]) -> None:
    """Raise unless there are gradients and all are finite."""
    assert gradients
    for name, value in gradients.items():
        assert np.isfinite(value).all(), f"the gradient of {name} is not finite"


def same(found: Array, expected: Array, what: str = "tensor") -> None:
    """Raise unless two arrays have the same dtype, shape and values; every NaN counts as the same."""
    check_form(found, expected, what)
    alike = (found == expected) | (np.isnan(found) & np.isnan(expected))
    assert alike.all(), f"{what}: {int((~alike).sum())} of {alike.size} elements differ"


def close(found: Array, expected: Array, relative: float, what: str = "tensor") -> None:
    """Raise unless two arrays have the same dtype and shape, and differ by no more than a part of their norm."""
    check_form(found, expected, what)
    off = distance(found, expected)
    # 1e-6: gradients that are zero but for rounding, as that of the input of a BatchNorm with equal gradients
    bound = relative * float(np.linalg.norm(expected.astype(np.float64))) + 1e-6
    assert off <= bound, f"{what}: off by {off:.3g}, at most {bound:.3g} allowed"


def check_form(found: Array, expected: Array, what: str) -> None:
    """Raise unless two arrays have the same dtype and shape."""
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} instead of {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: shape {found.shape} instead of {expected.shape}"


def distance(found: Array, expected: Array) -> float:
    """Return the norm of a difference."""
    return float(np.linalg.norm((found.astype(np.float64) - expected.astype(np.float64)).reshape(-1)))
