"""The geometry of pooling, once for all frameworks."""

from __future__ import annotations

from actnn.errors import ShapeError


def pooled_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Return the number of windows along one axis, as the frameworks count them."""
    if not 0 <= padding <= kernel // 2 or min(kernel, stride, dilation) < 1:
        raise ShapeError(
            f"a pooling window of {kernel} with stride {stride}, dilation {dilation} and padding {padding} does not "
            "exist: expected a padding of at most half the window."
        )
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    windows = (-(-room // stride) if ceil_mode else room // stride) + 1
    # the last window must start inside the input or the padding before it
    if ceil_mode and (windows - 1) * stride >= size + padding:
        windows -= 1
    if windows < 1:
        raise ShapeError(f"an axis of {size} is too small for a pooling window of {kernel} with dilation {dilation}.")
    return windows
