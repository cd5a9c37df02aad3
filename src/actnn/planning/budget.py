"""A memory budget: bytes that everything kept for backward may take, planned from the step before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from actnn.amounts import readable
from actnn.errors import BudgetError
from actnn.format import FAMILIES
from actnn.planning.learnt import Learnt
from actnn.planning.plain import Plain, plain_array
from actnn.planning.problem import Demand, Widths
from actnn.planning.records import Record, known, set_shares
from actnn.planning.solvers import allocate_jointly

# sums of averages are cut to whole planes; what that leaves is nothing to plan anew for
CLOSE = 0.01


class MemoryBudget:
    """Bytes for all that is kept, and the plan by which sites share what is left of them for planes.

    Widths follow from the sizes and sensitivities of the last step. Where the first code of a forward turns out larger
    or smaller than planned, all others are expected to be so too, and the plan is made anew before anything is coded.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.measuring = True
        self.other_bytes = 0
        self._chosen: list[tuple[Record, Demand]] = []
        self._sizes: dict[Learnt, list[int]] = {}
        self._fixed = 0
        self._scale: float | None = None
        self._settled = False
        self._coded: set[Learnt] = set()

    def measured(self, chosen: Sequence[tuple[Record, Demand]], kept_bytes: int, settled: bool) -> None:
        """Take the demands of the last step, and the bytes that it kept in all.

        ``settled`` tells that no site will change its kind of code any more.
        """
        planes = sum(record.layout.nbytes - record.layout.planes_offset for record, _ in chosen)
        self._take(chosen)
        self._fixed = max(0, kept_bytes + self.other_bytes - planes)
        self._scale, self._settled = None, settled

    def forward_begins(self) -> None:
        """Note that no site has made a code yet."""
        self._coded.clear()

    def expect(self, site: Learnt, size: int) -> None:
        """Plan, if need be anew, for a forward in which a site's next code is one of ``size`` elements."""
        sizes = self._sizes.get(site)
        if sizes:
            scale = self._scale or 1.0
            if not any(abs(size - scale * known) <= CLOSE * size for known in sizes):
                self.measuring = True
                scale = size / max(sizes)
            if scale != self._scale:
                self._plan(scale)
        self._coded.add(site)

    def _plan(self, scale: float) -> None:
        demands = [replace(demand, cost=demand.cost * scale) for _, demand in self._chosen]
        fixed = self._fixed * scale
        least = min(sum(demand.least for demand in demands), self.limit - fixed)
        try:
            # not all that is fixed grows with the batch: hold something back until it is measured
            reserve = CLOSE * self.limit if scale != 1.0 or self.measuring else 0.0
            widths: list[Widths] = allocate_jointly(demands, max(self.limit - fixed - reserve, least))
        except BudgetError as problem:
            smallest = problem.smallest + fixed
            if self._settled:
                raise MemoryBudgetError(self.limit, smallest) from None
            widths = allocate_jointly(demands, problem.smallest)
        self._scale = scale
        # a site that coded already in this forward must find the same share if it is computed anew
        planned = [
            (chosen, width)
            for chosen, width in zip(self._chosen, widths, strict=True)
            if chosen[0].site not in self._coded
        ]
        set_shares([chosen for chosen, _ in planned], [width for _, width in planned])

    def state(self) -> Plain:
        """Return, between steps, all that the next ones depend on; sites are named by index."""
        return {
            "limit": self.limit,
            "measuring": self.measuring,
            "other_bytes": self.other_bytes,
            "fixed": self._fixed,
            "scale": self._scale,
            "settled": self._settled,
            "coded": sorted(site.index for site in self._coded),
            "chosen": [record.state() | {"demand": state_of(demand)} for record, demand in self._chosen],
        }

    def load(self, state: Plain, sites: Sequence[Learnt]) -> None:
        """Go on where another budget of the same limit was."""
        self.limit, self.measuring, self.other_bytes = state["limit"], state["measuring"], state["other_bytes"]
        self._fixed, self._scale, self._settled = state["fixed"], state["scale"], state["settled"]
        self._coded = {sites[index] for index in state["coded"]}
        chosen = [(Record.of(each, sites, None), demand_of(each["demand"])) for each in state["chosen"]]
        self._take(chosen)

    def _take(self, chosen: Sequence[tuple[Record, Demand]]) -> None:
        self._chosen, self._sizes = list(chosen), {}
        for record, _ in chosen:
            self._sizes.setdefault(record.site, []).append(record.layout.samples * record.layout.elements)


def state_of(demand: Demand) -> Plain:
    """Return a demand as plain data."""
    sides = {"negative": plain_array(demand.negative), "positive": plain_array(demand.positive)}
    return {"family": demand.family.name, "cost": demand.cost} | sides


def demand_of(state: Plain) -> Demand:
    """Return the demand that plain data stand for."""
    return Demand(FAMILIES[state["family"]], state["cost"], known(state["negative"]), known(state["positive"]))


class MemoryBudgetError(BudgetError):
    """A memory budget that the model does not fit even at the least widths."""

    def __str__(self) -> str:
        return (
            f"memory={readable(self.budget)} is too small: with the least widths, what this batch keeps for backward "
            f"takes {readable(self.smallest)} ({self.smallest:.0f} bytes). Give at least that much, or a smaller batch."
        )
