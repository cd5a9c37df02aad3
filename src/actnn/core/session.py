"""A session: all state of one converted model — its sites, keys and byte accounts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from actnn import kernels
from actnn.core.format import MAX_BITS, TWO_SIDED, Family, Layout, Part, derive_key, uniform_layout
from actnn.core.policy import Policy
from actnn.core.report import Report, Row
from actnn.core.site import Site
from actnn.core.tags import Tags
from actnn.errors import ConfigError, SessionError
from actnn.kernels.contract import Array, Arrays, ChannelAffine, Key

LOGGER = logging.getLogger("actnn")
SEEDS = 2**64

Result = TypeVar("Result")


@dataclass(frozen=True)
class Code:
    """A code: its buffer and the layout that tells how to read it."""

    buffer: Array
    layout: Layout


class Session:
    """The owner of what one converted model needs while it trains.

    A step, for the byte accounts, is everything that was kept since the last backward began.
    """

    def __init__(self, policy: Policy, seed: int = 0, stream: int = 0) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
            raise ConfigError(f"seed={seed!r}: expected a whole number from 0 to 2**64 - 1.")
        self.policy = policy
        self.seed = seed
        self.stream = stream
        self.sites: list[Site] = []
        self.left_exact: list[tuple[str, str, str]] = []
        self.tags = Tags()
        self.closed = False
        self._step = 1
        self._backward_seen = False

    def site(self, name: str, kind: str, group: int = 0) -> Site:
        """Return a new site; its width is checked here, so that a bad group fails at conversion."""
        site = Site(self, name, kind, index=len(self.sites), group=group)
        if self.policy.compress and site.bits:
            self.sites.append(site)
        return site

    def close(self) -> None:
        """End the session: its layers refuse to keep anything from now on."""
        self.closed = True

    def check_open(self) -> None:
        """Raise SessionError once the session was closed."""
        if self.closed:
            raise SessionError(
                "this model's actnn session was closed. Convert the model again with actnn.QModule(model)."
            )

    def key(self, site: Site) -> Key:
        """Return the key of a site's next code."""
        return derive_key(self.seed, (self.stream << 32) + site.index, site.next_call())

    def layout(self, site: Site, samples: int, elements: int, family: Family) -> Layout:
        """Return the layout of a site's next code."""
        # the sides of a two-sided code tell a mask, which takes about one bit
        extra = 1 if family is TWO_SIDED else 0
        bits = min(max(site.bits + extra, family.least_bits), MAX_BITS)
        return uniform_layout(samples, elements, family, bits, self.policy.rounding)

    def encode(self, arrays: Arrays, values: Array, site: Site, layout: Layout) -> Code:
        """Return the code of dense ``values`` (samples, elements)."""
        backend = kernels.select(arrays, values)
        buffer = self.timed(site, "encode", partial(backend.encode, arrays, values, layout, self.key(site)))
        return Code(buffer, layout)

    def decode(
        self,
        arrays: Arrays,
        site: Site,
        code: Code,
        dtype: str,
        part: Part,
        affine: ChannelAffine | None,
        samples: range | None = None,
    ) -> Array:
        """Return the values of a code, or of some of its samples, of shape (samples, elements)."""
        backend = kernels.select(arrays, code.buffer)
        work = partial(backend.decode, arrays, code.buffer, code.layout, part, dtype, affine, samples)
        return self.timed(site, "decode", work)

    def pieces(self, samples: int, nbytes: int) -> list[range]:
        """Cut a batch whose decoded activations take ``nbytes`` into parts that stay below ``pipeline_threshold``."""
        threshold = self.policy.pipeline_threshold
        if threshold is None or nbytes <= threshold or samples < 2:
            return [range(samples)]
        parts = min(samples, -(-nbytes // threshold))
        size = -(-samples // parts)
        return [range(start, min(start + size, samples)) for start in range(0, samples, size)]

    def timed(self, site: Site, what: str, work: Callable[[], Result]) -> Result:
        """Do some work of a site; log how long it took where ``debug_speed`` asks for it."""
        if not self.policy.log_speed:
            return work()
        start = time.perf_counter()
        result = work()
        LOGGER.warning("%s %s: %.3f ms", site.name, what, 1e3 * (time.perf_counter() - start))
        return result

    def log_kept(self, site: Site, kept_bytes: int, exact_bytes: int) -> None:
        """Log what a site keeps where ``debug_memory_model`` asks for it."""
        if self.policy.log_memory:
            LOGGER.warning("%s keeps %d bytes instead of %d", site.name, kept_bytes, exact_bytes)

    def forward_begins(self) -> None:
        """Let every site expect the readers that it had in the last step."""
        for site in self.sites:
            site.learn()

    def backward_begins(self) -> None:
        """Note that a backward runs: what is kept next belongs to another step."""
        self._backward_seen = True
        self.tags.clear()

    def current_step(self) -> int:
        """Return the number of the step that is being recorded."""
        if self._backward_seen:
            self._backward_seen = False
            self._step += 1
        return self._step

    def __getstate__(self) -> dict[str, Any]:
        # tags belong to tensors of this process
        return self.__dict__ | {"tags": Tags()}

    def report(self) -> Report:
        """Return what each layer kept in the last recorded step."""
        active = [site for site in self.sites if site.step == self._step]
        rows = [Row.of(site) for site in active]
        seen = {name for row in rows for name in (row.layer, *row.readers)}
        idle = [site.name for site in self.sites if site.name not in seen]
        return Report(rows, idle, list(self.left_exact))
