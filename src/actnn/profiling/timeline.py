"""Memory over one step: replayed from its blocks, with the instant of the peak."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from actnn.profiling.blocks import CATEGORIES, CODES, OF_MARKS, Piece
from actnn.profiling.trace import Step

Kind = tuple[str, str]

# where the layer would be named of what a store holds
STORE = "(store)"


@dataclass(frozen=True)
class Share:
    """What one layer holds of one category at the peak, in so many blocks, what took them, and who holds them."""

    layer: str
    category: str
    nbytes: int
    blocks: int
    makers: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Moment:
    """The most memory while one layer ran, the categories that it consists of, and what variables of the user hold."""

    layer: str
    phase: str
    nbytes: int
    categories: dict[str, int]
    holders: dict[str, int]


class Timeline:
    """The memory that a step takes, at every moment, by layer and category."""

    def __init__(self, step: Step, pieces: Sequence[Piece]) -> None:
        self.begin = min((start for start, _ in step.phases.values()), default=0.0)
        self.end = max((end for _, end in step.phases.values()), default=0.0)
        self.phases = step.phases
        self.pieces = [*pieces, *outside_pieces(step)]
        self._changes = changes(self.pieces)
        self.peak_time, self.peak_bytes = self._peak()

    def _peak(self) -> tuple[float, int]:
        total = most = 0
        when = self.begin
        for time, nbytes, _ in self._changes:
            total += nbytes
            if total > most:
                most, when = total, time
        return when, most

    def held_at(self, time: float) -> list[Piece]:
        """Return what is held at a moment."""
        return [piece for piece in self.pieces if piece.start <= time < piece.end]

    def at_peak(self) -> list[Share]:
        """Return what the peak consists of, largest first."""
        groups: dict[Kind, list[Piece]] = defaultdict(list)
        for piece in self.held_at(self.peak_time):
            groups[piece.layer, piece.category].append(piece)
        look = self._last_look(self.peak_time)
        shares = []
        for kind, own in groups.items():
            makers = sorted({piece.maker for piece in own})
            holders = sorted({holder.place for piece in own for holder in piece.held if holder.look == look})
            nbytes = sum(piece.nbytes for piece in own)
            shares.append(Share(*kind, nbytes, len(own), tuple(makers), tuple(holders)))
        return sorted(shares, key=lambda share: -share.nbytes)

    def holders(self, time: float) -> dict[str, int]:
        """Return what each variable holds at a moment, as far as it was seen; the most first."""
        look, totals = self._last_look(time), defaultdict[str, int](int)
        for piece in self.held_at(time):
            for place in {holder.place for holder in piece.held if holder.look == look}:
                totals[place] += piece.nbytes
        return dict(sorted(totals.items(), key=lambda held: -held[1]))

    def _last_look(self, time: float) -> int | None:
        """Return the last look at variables before a moment; None in a phase in which nobody looked."""
        begin = max((start for start, _ in self.phases.values() if start <= time), default=self.begin)
        looks = [holder for piece in self.pieces for holder in piece.held if begin <= holder.time <= time]
        return max(looks).look if looks else None

    def highest(self, passes: Iterable[tuple[str, str, float, float]], count: int) -> list[Moment]:
        """Return the fullest moment of each pass of a layer, the fullest passes first."""
        times = [time for time, _, _ in self._changes]
        totals = list(accumulate(nbytes for _, nbytes, _ in self._changes))
        best: dict[tuple[str, str], tuple[int, float]] = {}
        for layer, phase, start, end in passes:
            within = range(bisect_left(times, start), bisect_right(times, end))
            if within:
                fullest = max(within, key=totals.__getitem__)
                found = totals[fullest], times[fullest]
                best[layer, phase] = max(found, best.get((layer, phase), found))
        ranked = sorted(best.items(), key=lambda entry: -entry[1][0])[:count]
        return [
            Moment(layer, phase, nbytes, self.composition(time), self.holders(time))
            for (layer, phase), (nbytes, time) in ranked
        ]

    def composition(self, time: float) -> dict[str, int]:
        """Return what is held of each category at a moment."""
        totals: dict[str, int] = defaultdict(int)
        for piece in self.held_at(time):
            totals[piece.category] += piece.nbytes
        return dict(totals)

    def sampled(self, points: int) -> list[tuple[float, dict[Kind, int]]]:
        """Return as many moments: the fullest of each part of the step, with what is held in each of them."""
        width = (self.end - self.begin) / points
        moments = [self.begin + width * index for index in range(points)]
        fullest, total = [-1] * points, 0
        for time, nbytes, _ in self._changes:
            total += nbytes
            part = min(max(int((time - self.begin) / width), 0), points - 1) if width else 0
            if total > fullest[part]:
                fullest[part], moments[part] = total, time
        return self._held_at_each(moments)

    def _held_at_each(self, moments: Sequence[float]) -> list[tuple[float, dict[Kind, int]]]:
        """Return what is held at moments in order of time."""
        held: dict[Kind, int] = defaultdict(int)
        samples, position = [], 0
        for moment in moments:
            while position < len(self._changes) and self._changes[position][0] <= moment:
                _, nbytes, kind = self._changes[position]
                held[kind] += nbytes
                position += 1
            samples.append((moment, {kind: nbytes for kind, nbytes in held.items() if nbytes}))
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
    """Return (time, bytes, kind) of all that is taken and given back, in order; what is given back comes first."""
    found = []
    for piece in pieces:
        found.append((piece.start, piece.nbytes, (piece.layer, piece.category)))
        if piece.end != float("inf"):
            found.append((piece.end, -piece.nbytes, (piece.layer, piece.category)))
    return sorted(found, key=lambda change: change[:2])


def outside_pieces(step: Step) -> Iterator[Piece]:
    """Yield what a store holds in memory of its own, as pieces from one sample to the next."""
    ends = [time for time, *_ in step.outside[1:]] + [max((end for _, end in step.phases.values()), default=0.0)]
    for (time, nbytes, mark), end in zip(step.outside, ends, strict=False):
        if nbytes:
            yield Piece(time, end, nbytes, STORE, OF_MARKS[mark], "store")


def by_category(held: dict[Kind, int]) -> list[int]:
    """Return what is held of each category, in their order."""
    totals = dict.fromkeys(CATEGORIES, 0)
    for (_, category), nbytes in held.items():
        totals[category] += nbytes
    return list(totals.values())
