"""Plain texts as windows of bytes: ``train.txt`` and ``valid.txt`` in a folder, or one file, whose end is a test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from actnn.workloads.datasets import DataError, DataSet

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

VOCABULARY = 256
LEARN, TESTS = "train.txt", ("valid.txt", "val.txt", "test.txt")
# of one file, so much at its end is for testing
TEST_SHARE = 20


class Windows(NamedTuple):
    """Consecutive windows of a text, ``length`` bytes each."""

    text: NDArray[np.uint8]
    length: int

    @property
    def image_count(self) -> int:
        """How many windows there are."""
        return len(self.text) // self.length

    @property
    def labels(self) -> Tensor:
        """The whole text."""
        import torch

        return torch.from_numpy(self.text)

    def batch(self, positions: Tensor, epoch: int | None) -> tuple[Tensor, Tensor]:
        """Return some windows ``[count, length]`` of tokens; a model predicts each from those before it."""
        import torch

        rows = self.text[: self.image_count * self.length].reshape(-1, self.length)[positions.tolist()]
        tokens = torch.from_numpy(rows.astype(np.int64))
        return tokens, tokens

    def prepare(self, positions: Tensor, epoch: int | None) -> None:
        """Do nothing: the text is in memory."""

    def limited(self, count: int) -> Windows:
        """Return the first ``count`` windows."""
        return Windows(self.text[: count * self.length], self.length)


def text_windows(path: Path, length: int) -> DataSet:
    """Return the set of a folder or a file."""
    if path.is_dir():
        test = next((path / name for name in TESTS if (path / name).is_file()), None)
        if test is None:
            raise DataError(f"{path} holds none of {', '.join(TESTS)}: expected {LEARN} beside one of them.")
        parts = [read(path / LEARN), read(test)]
    else:
        whole = read(path)
        held_back = len(whole) // TEST_SHARE
        parts = [whole[: len(whole) - held_back], whole[len(whole) - held_back :]]
    if any(len(part) < length for part in parts):
        raise DataError(
            f"{path} has {len(parts[0])} bytes to learn from and {len(parts[1])} to test: expected at least one window "
            f"of {length} each."
        )
    return DataSet(Windows(parts[0], length), Windows(parts[1], length), VOCABULARY)


def read(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of a text."""
    try:
        return np.frombuffer(path.read_bytes(), np.uint8).copy()
    except OSError as problem:
        raise DataError(f"the text {path} cannot be read: {problem}.") from problem
