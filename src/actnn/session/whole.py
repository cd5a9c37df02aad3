"""What autograd keeps of a whole model: codes, and what is not compressed with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from actnn.amounts import readable

# how many lines name what is not compressed; the rest is one line
MOST_LINES = 12


class Part(NamedTuple):
    """Whoever keeps something that is no code: a layer or module, the function that it called, and why it stays."""

    layer: str
    kind: str
    function: str
    reason: str


@dataclass(frozen=True)
class Whole:
    """Bytes that autograd keeps for backward after a forward of the whole model, parameters and buffers left out.

    ``coded_bytes`` of those kept are codes and what they need beside them, ``parts`` keep the rest. ``exact_bytes`` is
    what exact training keeps, ``estimated`` where it could not be counted. Both were counted in step ``step``.
    """

    kept_bytes: int
    exact_bytes: int
    coded_bytes: int
    parts: Mapping[Part, int]
    step: int
    estimated: bool = False

    @property
    def ratio(self) -> float:
        """How many times less is kept; 1 where nothing was."""
        return self.exact_bytes / self.kept_bytes if self.kept_bytes else 1.0

    def scaled(self, factor: float) -> Whole:
        """Return what a batch of another size is expected to keep."""
        parts = {part: int(size * factor) for part, size in self.parts.items()}
        kept, exact, coded = (int(size * factor) for size in (self.kept_bytes, self.exact_bytes, self.coded_bytes))
        return Whole(kept, exact, coded, parts, self.step, estimated=True)

    def lines(self) -> list[str]:
        """Return the headline, and what is not compressed, the largest first and those that are alike in one."""
        about = "about " if self.estimated else ""
        found = [
            f"autograd keeps {readable(self.kept_bytes)} of this model for backward, {about}{self.ratio:.1f}x less "
            f"than exact training ({readable(self.exact_bytes)}; counted in step {self.step}, parameters left out)"
        ]
        rest = self.kept_bytes - self.coded_bytes
        found.append(f"  {readable(self.coded_bytes)} as codes, {readable(rest)} not compressed:")
        named = [f"    {readable(size):>10}  {words}" for words, size in folded(self.parts)]
        found += named[:MOST_LINES]
        if len(named) > MOST_LINES:
            left = sum(size for _, size in folded(self.parts)[MOST_LINES:])
            found.append(f"    {readable(left):>10}  {len(named) - MOST_LINES} further lines")
        return found if named else [found[0], f"  {readable(self.coded_bytes)} as codes"]


def folded(parts: Mapping[Part, int]) -> list[tuple[str, int]]:
    """Return lines and their bytes, the largest first; parts that are alike but for the layer share one."""
    alike: dict[tuple[str, str, str], list[tuple[Part, int]]] = {}
    for part, size in parts.items():
        alike.setdefault(part[1:], []).append((part, size))
    lines = [(line([part for part, _ in own]), sum(size for _, size in own)) for own in alike.values()]
    return sorted(lines, key=lambda entry: -entry[1])


def line(parts: Sequence[Part]) -> str:
    """Return the words for parts that are alike."""
    first = parts[0]
    kind = f"{len(parts)} {first.kind or 'calls'}" if len(parts) > 1 else called(first)
    return f"{kind}{': ' + first.function if first.function else ''} ({first.reason})"


def called(part: Part) -> str:
    """Return how one part is named."""
    name = part.layer or "a module that came after the conversion"
    return f"{name} ({part.kind})" if part.kind else name


def listed(layers: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return a line for each of some layers with kind and reason, or for all that are alike."""
    alike: dict[tuple[str, str], list[str]] = {}
    for layer, kind, reason in layers:
        alike.setdefault((kind, reason), []).append(layer)
    return [
        f"{names[0]} ({kind}): {reason}" if len(names) == 1 else f"{len(names)} {kind}: {reason} ({some(names)})"
        for (kind, reason), names in alike.items()
    ]


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first of many names."""
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])}, …"
