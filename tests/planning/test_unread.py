"""What an accelerator measured: it is copied once a step, read when it has arrived, and never waited for."""

from __future__ import annotations

import numpy as np
import pytest
from stand_in_device import StandInArrays

from actnn.format import AFFINE, uniform_layout
from actnn.kernels.contract import Block, Stretch
from actnn.planning.noise import Transfer
from actnn.planning.records import BOTH_SIDES, Observation, Record
from actnn.planning.unread import Held
from actnn.session.session import Session
from actnn.session.site import Site
from actnn.settings import Config

SAMPLES, ELEMENTS = 8, 512


@pytest.fixture
def arrays() -> StandInArrays:
    """A device whose copies are done when a test says so."""
    return StandInArrays()


@pytest.fixture
def session() -> Session:
    """A session at L3 with two sites."""
    config = Config()
    config.set_optimization_level("L3")
    config.activation_compression_bits = [2]
    session = Session(config.policy())
    for name in "ab":
        session.site(name, "QConv2d")
    return session


def coded(arrays: StandInArrays, site: Site, size: float) -> Record:
    """Plan a code whose ranges, all of one size, and widths the device writes."""
    planner = site.session.planner
    planes = planner.planes(site, SAMPLES, ELEMENTS, AFFINE)
    record = planner.record(site, uniform_layout(SAMPLES, ELEMENTS, AFFINE, 1, site.session.policy.rounding), planes)
    block = record.layout.block
    memory = block.stretch.on_device(arrays, np.empty(0), block.address, Block.nbytes(SAMPLES))
    memory[:] = 0
    ranges, bits = block.ranges_address - block.address, block.bits_address - block.address
    memory[ranges:bits].view(np.float32)[:] = size
    memory[bits : bits + SAMPLES] = 2
    return record


def read(arrays: StandInArrays, record: Record, energy: float) -> None:
    """Let a map read a code with gradients of one energy, which the device writes."""
    planner = record.site.session.planner
    span = planner.statistics.span(SAMPLES)
    span.stretch.on_device(arrays, np.empty(0), span.address, 4 * SAMPLES).view(np.float32)[:] = energy
    planner.observe(Observation(record, record.site, BOTH_SIDES, 1.0, span))


def step(arrays: StandInArrays, session: Session, sizes: tuple[float, float] = (1.0, 64.0)) -> None:
    """Take a step in which noise of the second code costs more."""
    session.forward_begins()
    records = [coded(arrays, site, size) for site, size in zip(session.sites, sizes, strict=True)]
    for record in records:
        read(arrays, record, 1.0)


def shares(session: Session) -> list[float | None]:
    """Return the average widths that sites were given."""
    return [None if site.share is None else site.share[1] for site in session.sites]


def test_nothing_is_read_before_the_copy_has_arrived(arrays, session):
    for _ in range(3):
        step(arrays, session)
    assert shares(session) == [None, None]
    assert [copy.done for copy in arrays.lane.begun] == [False, False]


def test_a_step_is_read_when_a_forward_begins_after_its_copy_has_arrived(arrays, session):
    step(arrays, session)
    session.forward_begins()
    arrays.lane.run(1)
    assert shares(session) == [None, None]
    session.forward_begins()
    first, second = shares(session)
    assert first < second
    assert first + second == pytest.approx(4.0)


def test_one_copy_a_step_takes_ranges_energies_and_all_that_is_held(arrays, session):
    step(arrays, session)
    planner, site = session.planner, session.sites[0]
    aligned, patch = (planner.hold(arrays, np.array(values, np.float32)) for values in ([1.0, 2.0], [3.0]))
    planner.measured(site, lambda: Transfer(aligned(), float(patch()[0])))
    session.forward_begins()
    assert len(arrays.lane.begun) == 1
    arrays.lane.run(1)
    session.forward_begins()
    assert site.transfer.aligned.tolist() == [1.0, 2.0]
    assert site.transfer.patch == 3.0


def test_a_step_in_which_nobody_was_observed_is_not_copied(arrays, session):
    session.forward_begins()
    for site in session.sites:
        coded(arrays, site, 1.0)
    session.forward_begins()
    assert arrays.lane.begun == []


def test_steps_are_read_in_their_order(arrays, session):
    for sizes in ((1.0, 64.0), (4096.0, 1.0)):
        step(arrays, session, sizes)
    session.forward_begins()
    late, early = arrays.lane.begun[0], arrays.lane.begun[1]
    early.perform()
    session.forward_begins()
    assert shares(session) == [None, None]
    late.perform()
    session.forward_begins()
    first, second = shares(session)
    assert first > second


def test_a_transfer_on_its_way_is_not_measured_again(arrays, session):
    site, planner = session.sites[0], session.planner
    step(arrays, session)
    planner.measured(site, lambda: Transfer(np.ones(1), 1.0))
    assert not planner.wants_transfer(site)
    session.forward_begins()
    assert not planner.wants_transfer(site)
    arrays.lane.run(1)
    session.forward_begins()
    assert site.transfer is not None


def test_a_checkpoint_waits_for_what_is_on_its_way(arrays, session):
    step(arrays, session)
    session.forward_begins()
    state = session.state_dict()
    assert arrays.lane.begun[0].done
    assert len(state["planner"]["records"]) == 2


def test_who_reads_a_stretch_in_a_hurry_waits_for_its_copy(arrays, session):
    session.forward_begins()
    record = coded(arrays, session.sites[0], 5.0)
    read(arrays, record, 1.0)
    session.forward_begins()
    assert not arrays.lane.begun[0].done
    assert record.ranges.tolist() == [[5.0] * 4] * SAMPLES


def test_what_is_written_after_a_copy_began_is_not_lost(arrays):
    stretch = Stretch(np.zeros(64, np.uint8))
    first = stretch.on_device(arrays, np.empty(0), stretch.address, 8)
    first[:] = 1
    receive = stretch.receiver(stretch.devices["stand-in"])
    stretch.on_device(arrays, np.empty(0), stretch.address + 8, 8)[:] = 2
    receive(stretch.devices["stand-in"].memory.copy())
    assert stretch.viewed(stretch.address, 16).tolist() == [1] * 8 + [2] * 8


def test_an_array_of_the_host_is_read_as_it_is(session):
    from actnn.kernels.numpy_arrays import NumpyArrays

    held = Held(NumpyArrays(), np.array([1.5, 2.5], np.float32))
    assert held.device is None
    assert held().tolist() == [1.5, 2.5]
    told = []
    session.planner.tell(held, lambda: told.append(held().sum()))
    assert told == [4.0]


def test_what_was_held_on_a_device_is_told_when_it_has_arrived(arrays, session):
    session.forward_begins()
    held, told = session.planner.hold(arrays, np.array([7.0], np.float32)), []
    session.planner.tell(held, lambda: told.append(float(held()[0])))
    session.forward_begins()
    session.forward_begins()
    assert told == []
    arrays.lane.run(1)
    session.forward_begins()
    assert told == [7.0]
