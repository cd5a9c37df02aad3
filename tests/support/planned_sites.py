"""For tests of the planner: sessions made by hand, codes with given ranges, and what readers felt of them."""

from __future__ import annotations

import numpy as np
import pytest

from actnn.format import AFFINE, FAMILIES, Family, uniform_layout
from actnn.kernels.contract import Span
from actnn.kernels.reference.division import divide
from actnn.planning.planner import Planner
from actnn.planning.records import BOTH_SIDES, Handing, Observation, Record
from actnn.session.session import Session
from actnn.session.site import Site
from actnn.settings import Config

SAMPLES, ELEMENTS = 8, 512
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
# eight samples whose noise costs more and more
UNEQUAL = 4.0 ** np.arange(SAMPLES)


def session(level: str = "L3", bits: object = 2, **settings: object) -> Session:
    """Return a session at a level; ``bits`` is one average, or one for each group."""
    config = Config()
    config.set_optimization_level(level)
    config.activation_compression_bits = bits if isinstance(bits, list) else [bits]
    for name, value in settings.items():
        setattr(config, name, value)
    return Session(config.policy())


def sites(session: Session, count: int = 1, **options: object) -> list[Site]:
    return [session.site(f"layer{number}", "QConv2d", **options) for number in range(count)]


def code(site: Site, ranges=None, family: Family = AFFINE, samples: int = SAMPLES, elements: int = ELEMENTS) -> Record:
    """Let a site make a code whose samples have these squared ranges, on all sides."""
    ranges = np.ones(samples) if ranges is None else np.asarray(ranges, np.float64)
    return planned(site, np.repeat(ranges[:, None], 4, axis=1), family, elements)


def planned(site: Site, table: np.ndarray, family: Family, elements: int = ELEMENTS) -> Record:
    """Plan a code, and do what a kernel does: write the ranges, and divide the planes between the samples."""
    planner, samples = site.session.planner, len(table)
    planes = planner.planes(site, samples, elements, family)
    layout = uniform_layout(samples, elements, family, family.least_bits, site.session.policy.rounding)
    record = planner.record(site, layout, planes)
    record.layout.block.ranges[:] = table
    divide(record.layout, planner.division(record))
    return record


def energies_of(planner: Planner, energies) -> Span:
    """Return energies where a kernel would write them."""
    span = planner.statistics.span(len(energies))
    span.values[:] = energies
    return span


def read(record: Record, energies=1.0, reader: Site | None = None, columns=BOTH_SIDES, coefficient=1.0) -> None:
    """Let a layer read a code with squared gradient norms, one for all samples or one each."""
    planner = record.site.session.planner
    span = energies_of(planner, np.broadcast_to(np.asarray(energies, np.float64), (record.layout.samples,)))
    planner.observe(Observation(record, reader or record.site, columns, coefficient, span))


def hand(record: Record, norm: Site, energies, channels) -> None:
    """Let a BatchNorm read a code, with slope and mean(g x̂) of each channel where they are wanted."""
    planner = record.site.session.planner
    wanted = (lambda: channels) if planner.wants_handing(norm) else None
    planner.observe(Handing(record, norm, BOTH_SIDES, 1.0, energies_of(planner, energies), wanted))


def widths(record: Record) -> list[int]:
    return list(record.layout.sample_bits)


def planes(record: Record) -> int:
    return sum(widths(record))


def learned(session: Session, owners: list[Site], energies, ranges=None, **options: object) -> None:
    """Run a step in which each site makes a code and reads it with its energies; let the next forward begin."""
    session.forward_begins()
    for site, energy in zip(owners, energies, strict=True):
        read(code(site, ranges, **options), energy)
    session.forward_begins()


def statistics(session: Session) -> list[object]:
    """Return what a session has learned, for comparison."""
    found: list[object] = [session.planner.norms.of(np.arange(64)).tolist()]
    for site in session.sites:
        weights = None if site.weights is None else site.weights.tolist()
        found.append((site.name, site.gradient, weights, site.share))
    return found
