"""A session: all state of one converted model — its sites, keys and byte accounts."""

from __future__ import annotations

import logging
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from actnn.errors import ConfigError, SessionError
from actnn.format import derive_key
from actnn.kernels import heap
from actnn.kernels.contract import Key
from actnn.kernels.native import preload
from actnn.planning.planner import Planner
from actnn.planning.samples import Indices
from actnn.session.report import Report, Row
from actnn.session.site import Site
from actnn.session.state import load_state, state_of
from actnn.session.tags import Tags
from actnn.session.whole import Whole
from actnn.settings import Policy
from actnn.stores.slabs import Slabs
from actnn.stores.store import Memory, Store, Swap

LOGGER = logging.getLogger("actnn")
SEEDS = 2**64
# what a convolution on the host rearranges as a whole; of more than that a quarter at a time: as much as caches hold
# costs no time, and bounds its workspace
WORKING_BYTES = 16 * 2**20

# how many sites of a session, and sessions of a process, draw noise of their own
SITE_BITS, STREAM_BITS = 32, 16

# what does some work of a site, and returns its result
Watch = Callable[[Site, str, Callable[[], Any]], Any]


def alone() -> int:
    """Return the number of the only process."""
    return 0


class Session:
    """The owner of what one converted model needs while it trains.

    A step, for the byte accounts, is everything that was kept since the last backward began.
    """

    def __init__(
        self,
        policy: Policy,
        seed: int = 0,
        stream: int = 0,
        memory: int | None = None,
        process: Callable[[], int] = alone,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
            raise ConfigError(f"seed={seed!r}: expected a whole number from 0 to 2**64 - 1.")
        if memory is not None and not (policy.compress and policy.compress_batch_norm):
            raise ConfigError("a memory budget needs codes to choose the widths of: use level 'L2' or higher with it.")
        self.policy = policy
        self.planner = Planner(policy, memory)
        self.store: Store = self._new_store()
        self.seed = seed
        self.stream = stream
        # asked in each step: trainers form the group of processes long after a model was converted
        self._process = process
        self._noise: int | None = None
        self.sites: list[Site] = []
        self._call_sites: dict[str, Site] = {}
        self.left_exact: list[tuple[str, str, str]] = []
        # layers that were not converted, by kind
        self.other_kinds: defaultdict[str, list[str]] = defaultdict(list)
        self.tags = Tags()
        # gradients that wait for those of other branches, by edges of the graph, and by who has yet to receive them
        self.waiting_gradients: dict[Any, Any] = {}
        self.shared_gradients: dict[int, list[Any]] = {}
        self.closed = False
        # called in the place of each kernel of a code where somebody wants to see them
        self.watch: Watch | None = self.log_time if policy.log_speed else None
        # whether every further backward function of this step may go without telling that one runs
        self.backward_noted = False
        # the step that is being recorded, and whether the next thing that is kept begins another one
        self.step = 1
        self.backward_seen = False
        # whether forwards of the whole model tell when they begin; layers made by hand have none
        self._whole = False
        self._wrapper: weakref.ref[Any] | None = None
        # of a converted model: whether its last step is over, what begins the next one, and what undoes conversion
        self.over = False
        self.conversion: Any = None
        self._begin: Callable[[], None] | None = None
        # whether functions that the model's own code calls are sent to operations
        self.serves_calls = False

    def site(self, name: str, kind: str, group: int = 0, batch_norm: bool = False, extra: float = 0.0) -> Site:
        """Return a new site; its width is checked here, so that a bad group fails at conversion."""
        site = Site(self, name, kind, len(self.sites), group, batch_norm, extra)
        if self.policy.compress:
            self.sites.append(site)
        return site

    def call_site(self, name: str, kind: str, batch_norm: bool = False, extra: float = 0.0) -> Site:
        """Return the site of a function that the model's own code calls, made at the first call."""
        site = self._call_sites.get(name)
        if site is None:
            site = self._call_sites[name] = self.site(name, kind, 0, batch_norm, extra)
        return site

    def calls(self) -> list[list[Any]]:
        """Return, as plain data, what each site of a function was made with: its index, and the rest."""
        return [[site.index, site.batch_norm, site.extra] for site in self._call_sites.values()]

    def converted_for(self, conversion: Any, begin: Callable[[], None]) -> None:
        """Note what undoes the conversion of a model for this session, and what begins a step of it."""
        self.conversion, self._begin = conversion, begin
        self.over = self.serves
        # where memory counts more than time, freed blocks go back at once
        if self.policy.compress and not self.policy.arena:
            heap.keep_blocks()

    def used_by(self, wrapper: Any) -> None:
        """Note the wrapper of the converted model."""
        self._wrapper = weakref.ref(wrapper)

    @property
    def by_hand(self) -> bool:
        """Whether this session is that of a layer made by hand."""
        return self.conversion is None

    @property
    def in_use(self) -> bool:
        """Whether a converted model goes on with this session."""
        return self._wrapper is not None and self._wrapper() is not None and not self.closed

    @property
    def serves(self) -> bool:
        """Whether a model trains otherwise than without this session."""
        return (self.policy.compress or self.policy.swap) and not self.closed

    @property
    def swaps_activations(self) -> bool:
        """Whether what autograd saves leaves memory as it is, without codes."""
        return self.policy.swap and not self.policy.compress and not self.closed

    def whole_model(self) -> Site:
        """Return the one site of a session that makes no codes, for the account of all that is kept."""
        if not self.sites:
            self.sites.append(Site(self, "model", "saved tensors", 0, 0, False))
        return self.sites[0]

    def close(self) -> None:
        """End the session: its layers refuse to keep anything from now on."""
        self.closed = True
        self.store.close()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let the model compute for a while as it would without this session."""
        closed, compress = self.closed, [site.compresses for site in self.sites]
        self.closed = True
        for site in self.sites:
            site.compresses = False
        try:
            yield
        finally:
            self.closed = closed
            for site, compresses in zip(self.sites, compress, strict=True):
                site.compresses = compresses

    def check_open(self) -> None:
        """Raise SessionError once the session was closed."""
        if self.closed:
            raise SessionError(
                "this model's actnn session was closed. Convert the model again with actnn.QModule(model)."
            )

    def key(self, site: Site) -> Key:
        """Return the key of a site's next code: no two codes of a session share one."""
        if self._noise is None:
            self._noise = ((self._process() << STREAM_BITS) + self.stream) << SITE_BITS
        site.encoded += 1
        return derive_key(self.seed, self._noise + site.index, site.encoded)

    def pieces(self, samples: int, decoded_bytes: int, working_bytes: int = 0, weight_bytes: int = 0) -> list[range]:
        """Cut a batch into the parts that a layer works on, one after another.

        Its decoded activations take ``decoded_bytes``, of which no more than ``pipeline_threshold`` are to be there at
        once. ``working_bytes`` are those of input and output together where the framework rearranges both, and every
        part costs ``weight_bytes`` again.
        """
        threshold = self.policy.pipeline_threshold
        parts = 1 if threshold is None else -(-decoded_bytes // threshold)
        if working_bytes > WORKING_BYTES:
            parts = max(parts, -(-working_bytes // max(WORKING_BYTES // 4, 2 * weight_bytes, 1)))
        parts = min(samples, parts)
        if parts < 2:
            return [range(samples)]
        size = -(-samples // parts)
        return [range(start, min(start + size, samples)) for start in range(0, samples, size)]

    def log_time(self, site: Site, what: str, work: Callable[[], Any]) -> Any:
        """Do some work of a site, and log how long it took."""
        start = time.perf_counter()
        result = work()
        LOGGER.warning("%s %s: %.3f ms", site.name, what, 1e3 * (time.perf_counter() - start))
        return result

    def log_kept(self, site: Site, kept_bytes: int, exact_bytes: int) -> None:
        """Log what a site keeps."""
        LOGGER.warning("%s keeps %d bytes instead of %d", site.name, kept_bytes, exact_bytes)

    def forward_begins(self, indices: Indices | None = None) -> None:
        """Let every site expect the readers that it had in the last step, and give it its share of the budget.

        ``indices`` tells which samples of the training set the batch holds.
        """
        self._whole = True
        self.over = False
        self._noise = None
        self._trim()
        self.work_ends()
        self.backward_noted = False
        if self.backward_seen:
            self.tags.clear()
            self.waiting_gradients.clear()
            self.shared_gradients.clear()
        self.store.step_begins()
        changed = [site.learn() for site in self.sites if site.seen is not None]
        self.planner.forward_begins(indices, not any(changed), self._kept_bytes)

    def begin_late(self) -> None:
        """Begin a step where a part of a converted model is called by itself after the last one was over."""
        if self._begin is not None:
            self._begin()

    def backward_begins(self) -> None:
        """Note that a backward runs: what is kept next belongs to another step."""
        if not self.backward_seen:
            self._trim()
        self.over = self.conversion is not None
        self.backward_seen, self._noise = True, None
        if self._whole:
            self.backward_noted = True
        else:
            self.tags.clear()

    @property
    def predictions(self) -> dict[str, float] | None:
        """Where set to a dictionary, every backward adds the variance predicted for its layer's gradient to it."""
        return self.planner.predictions

    @predictions.setter
    def predictions(self, predictions: dict[str, float] | None) -> None:
        self.planner.predictions = predictions

    def next_step(self) -> None:
        """Begin another step: something is kept after a backward."""
        self.backward_seen = self.backward_noted = False
        self.step += 1

    @property
    def measures_memory(self) -> bool:
        """Whether the next forward is to tell what all layers keep."""
        return self.planner.budget is not None and self.planner.budget.measuring

    def all_kept(self, nbytes: int) -> None:
        """Note the bytes that a whole forward kept, with what layers keep that are not compressed."""
        if self.planner.budget is not None:
            # what was swapped is not among those bytes
            accounts = [site.account for site in self.sites if site.step == self.step and not site.fixed]
            of_sites = sum(max(0, account.kept_bytes - account.swapped_bytes) for account in accounts)
            self.planner.budget.other_bytes = max(0, nbytes - of_sites)
            self.planner.budget.measuring = False

    def work_ends(self) -> None:
        """Let the system have what a step took and freed, where memory counts and the allocator keeps that.

        Called as a step begins, and where it can be as a backward ends: what is freed between is taken again.
        """
        if self.policy.arena:
            preload.begin_step()

    def _trim(self) -> None:
        """Let the system have what the process freed, where that is more than the settings allow."""
        if self.policy.trim_threshold is not None:
            heap.trim(self.policy.trim_threshold)

    def _kept_bytes(self) -> int:
        return sum(site.account.kept_bytes for site in self.sites if site.step == self.step)

    def progress(self) -> dict[str, Any]:
        """Return, as plain data, where in its steps the session is."""
        return {
            "seed": self.seed,
            "step": self.step,
            "backward_seen": self.backward_seen,
            "whole": self._whole,
        }

    def load_progress(self, progress: Mapping[str, Any]) -> None:
        """Go on where ``progress`` was taken."""
        self.seed, self.step = progress["seed"], progress["step"]
        self.backward_seen, self._whole = progress["backward_seen"], progress["whole"]
        # a state is taken between steps
        self.backward_noted, self.over = False, self.conversion is not None and self.serves

    def state_dict(self) -> dict[str, Any]:
        """Return, between steps, all that the next ones depend on, as plain data."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a session of the same model was when its state was taken."""
        load_state(self, state)

    def __getstate__(self) -> dict[str, Any]:
        # tags and gradients belong to tensors of this process, and the wrapper to the session that is copied
        return self.__dict__ | {
            **{"tags": Tags(), "store": None, "watch": None, "_wrapper": None, "_noise": None},
            **{"waiting_gradients": {}, "shared_gradients": {}},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.store = self._new_store()
        self.watch = self.log_time if self.policy.log_speed else None

    def _new_store(self) -> Store:
        policy, slabs = self.policy, None
        if policy.arena:
            # what is left in the heap must not leave holes either
            heap.separate_blocks()
            slabs = Slabs()
        return Swap(policy.swap_dir, policy.swap_bytes, slabs) if policy.swap else Memory(slabs)

    @property
    def coded_elements(self) -> int:
        """How many numbers were coded in the last recorded step."""
        return sum(site.account.elements for site in self.sites if site.step == self.step)

    def report(self, whole: Whole | None = None, later: Sequence[tuple[str, str]] = ()) -> Report:
        """Return what each layer kept in the last recorded step.

        ``whole`` is what all of the model keeps where that was counted, ``later`` names layers that came after the
        conversion.
        """
        active = [site for site in self.sites if site.step == self.step]
        rows = [Row.of(site) for site in active]
        # a layer of several operations keeps what they keep
        layers = {site.layer for site in active}
        seen = {name for row in rows for name in (row.layer, *row.readers)} | layers
        idle = [site.name for site in self.sites if site.name not in seen]
        # what was not converted and calls functions that are served has rows all the same
        served = {site.layer for site in self.sites}
        others = {kind: sum(name not in served for name in names) for kind, names in self.other_kinds.items()}
        budget = self.planner.budget
        return Report(
            rows,
            idle,
            list(self.left_exact),
            limit=None if budget is None else budget.limit,
            other_bytes=0 if budget is None else budget.other_bytes,
            other_kinds=sorted((kind, count) for kind, count in others.items() if count),
            compresses=bool(self.sites) or (self.serves_calls and self.over) or self.swaps_activations,
            whole=whole,
            later=list(later),
        )
