"""Memory over one step: replayed from its blocks, with the instant of the peak."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from actnn.report.blocks import CATEGORIES, CODES, Piece
from actnn.report.trace import Step

Kind = tuple[str, str]


@dataclass(frozen=True)
class Share:
    """What one layer holds of one category at the peak."""

    layer: str
    category: str
    nbytes: int
    blocks: int


class Timeline:
    """The memory that a step takes, at every moment, by layer and category."""

    def __init__(self, step: Step, pieces: Sequence[Piece]) -> None:
        self.begin = min((start for start, _ in step.phases.values()), default=0.0)
        self.end = max((end for _, end in step.phases.values()), default=0.0)
        self.phases = step.phases
        self._pieces = [*pieces, *outside_pieces(step, pieces)]
        self._changes = changes(self._pieces)
        self.peak_time, self.peak_bytes = self._peak()

    def _peak(self) -> tuple[float, int]:
        total = most = 0
        when = self.begin
        for time, nbytes, _ in self._changes:
            total += nbytes
            if total > most:
                most, when = total, time
        return when, most

    def at_peak(self) -> list[Share]:
        """Return what the peak consists of, largest first."""
        totals: dict[Kind, list[int]] = defaultdict(lambda: [0, 0])
        for piece in self._pieces:
            if piece.start <= self.peak_time < piece.end:
                total = totals[piece.layer, piece.category]
                total[0] += piece.nbytes
                total[1] += 1
        shares = [Share(*kind, nbytes, count) for kind, (nbytes, count) in totals.items()]
        return sorted(shares, key=lambda share: -share.nbytes)

    def sampled(self, points: int) -> list[tuple[float, dict[Kind, int]]]:
        """Return as many moments: the fullest of each part of the step, with what is held in each of them."""
        width = (self.end - self.begin) / points or 1.0
        edges = [self.begin + width * (index + 1) for index in range(points)]
        held: dict[Kind, int] = defaultdict(int)
        samples: list[tuple[float, dict[Kind, int]]] = []
        queue = iter([*self._changes, (float("inf"), 0, ("", ""))])
        time, nbytes, kind = next(queue)
        for edge in edges:
            total = sum(held.values())
            best, state = total, (edge - width, dict(held))
            pending: list[tuple[Kind, int]] = []
            while time < edge or (edge == edges[-1] and time <= self.end):
                total += nbytes
                held[kind] += nbytes
                pending.append((kind, nbytes))
                if total > best:
                    best = total
                    state = (time, None)  # type: ignore[assignment]
                    pending.clear()
                time, nbytes, kind = next(queue)
            if state[1] is None:
                snapshot = dict(held)
                for changed, amount in pending:
                    snapshot[changed] -= amount
                state = (state[0], snapshot)
            samples.append((state[0], {key: value for key, value in state[1].items() if value}))
        return samples

    def peak_with(self, codes: float = 1.0, most: float = float("inf")) -> int:
        """Return the peak if codes took so many times the bytes, of which at most ``most`` were in memory."""
        rest = held = peak = 0
        for _, nbytes, (_, category) in self._changes:
            if category == CODES:
                held += nbytes
            else:
                rest += nbytes
            peak = max(peak, rest + int(min(held * codes, most)))
        return peak


def changes(pieces: Iterable[Piece]) -> list[tuple[float, int, Kind]]:
    """Return (time, bytes, kind) of everything taken and given back, in order; what is given back goes first."""
    found = []
    for piece in pieces:
        found.append((piece.start, piece.nbytes, (piece.layer, piece.category)))
        if piece.end != float("inf"):
            found.append((piece.end, -piece.nbytes, (piece.layer, piece.category)))
    return sorted(found, key=lambda change: change[:2])


def outside_pieces(step: Step, pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Yield the codes that a store holds in memory of its own, as pieces between one sample and the next.

    What a store was given but has not yet written still lies in the framework's memory, and counts there.
    """
    if not step.outside:
        return
    put = changes(piece for piece in pieces if piece.category == CODES)
    times, totals, total = [], [], 0
    for time, nbytes, _ in put:
        total += nbytes
        times.append(time)
        totals.append(total)
    ends = [time for time, _ in step.outside[1:]] + [max(end for _, end in step.phases.values())]
    for (time, nbytes), end in zip(step.outside, ends, strict=True):
        index = bisect_right(times, time)
        own = nbytes - (totals[index - 1] if index else 0)
        if own > 0:
            yield Piece(time, end, own, "", CODES)


def by_category(held: dict[Kind, int]) -> list[int]:
    """Return what is held of each category, in their order."""
    totals = dict.fromkeys(CATEGORIES, 0)
    for (_, category), nbytes in held.items():
        totals[category] += nbytes
    return list(totals.values())
