"""Slabs: places never overlap, live exactly as long as their views, and cost no more memory than what lives."""

from __future__ import annotations

import gc
import random
import resource
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from child_process import check_in_child
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE

from actnn.kernels.numpy_arrays import NumpyArrays
from actnn.measuring.memory import resident
from actnn.stores import slabs as module
from actnn.stores.places import PAGE, pages
from actnn.stores.slabs import GROWTH, Slabs
from actnn.stores.store import LEAST_BYTES, Memory

MB = 2**20


@pytest.fixture
def slabs() -> Slabs:
    return Slabs()


@pytest.fixture
def small_growth(monkeypatch):
    """Let slabs be small, so that a few places fill one."""
    monkeypatch.setattr(module, "GROWTH", 8 * PAGE)


def filled(slabs: Slabs, size: int, seed: int) -> np.ndarray:
    """Take a place and write to all of it."""
    view = slabs.take(size)
    view[:] = content(size, seed)
    return view


def content(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def address(view: np.ndarray) -> int:
    return view.__array_interface__["data"][0]


def check_apart(views: list[np.ndarray]) -> None:
    """Raise where two places overlap."""
    ends = sorted((address(view), address(view) + view.size) for view in views if view.size)
    for (_, stop), (start, _) in pairwise(ends):
        assert stop <= start


def step(slabs: Slabs, sizes: list[int]) -> None:
    """Take places as a forward does, and let them go as a backward does."""
    slabs.step_begins()
    views = [slabs.take(size) for size in sizes]
    while views:
        views.pop()


Action = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 6 * PAGE)),
    st.tuples(st.just("drop"), st.integers(0, 10**6)),
    st.tuples(st.just("step"), st.just(0)),
    st.tuples(st.just("let go"), st.just(0)),
)


@given(st.lists(Action, max_size=60))
def test_places_never_overlap_and_keep_what_was_written(actions):
    slabs, held = Slabs(), []
    for seed, (action, number) in enumerate(actions):
        if action == "take":
            held.append((filled(slabs, number, seed), seed))
        elif action == "drop" and held:
            held.pop(number % len(held))
        elif action == "step":
            slabs.step_begins()
        elif action == "let go":
            slabs.let_go()
        check_apart([view for view, _ in held])
        assert slabs.statistics().taken_bytes == sum(pages(view.size) for view, _ in held)
    for view, seed in held:
        np.testing.assert_array_equal(view, content(view.size, seed))


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, GROWTH, GROWTH + 1])
def test_a_place_of_any_size_can_be_written_to(slabs, size):
    view = filled(slabs, size, 1)
    assert (view.size, view.flags.writeable, view.flags.c_contiguous) == (size, True, True)
    np.testing.assert_array_equal(view, content(size, 1))
    del view
    assert slabs.statistics().taken_bytes == 0


def test_a_place_is_free_when_its_view_goes_and_taken_again(slabs):
    first = slabs.take(3 * PAGE)
    start, other = address(first), slabs.take(PAGE)
    del first
    assert address(slabs.take(3 * PAGE)) == start
    assert slabs.statistics().taken_bytes == PAGE
    del other


@pytest.mark.own_process
def test_pages_of_a_place_go_back_to_the_system_at_once(slabs):
    held, large = slabs.take(MB), slabs.take(64 * MB)
    held[:], large[:] = 1, 1
    before = resident("VmRSS")
    del large
    assert before - resident("VmRSS") > 60 * MB
    assert held.all(), "the neighbour lost its pages"


@pytest.mark.own_process
def test_a_slab_that_is_let_go_goes_back_to_the_system(slabs):
    step(slabs, [64 * MB])
    before = resident("VmSize")
    slabs.let_go()
    assert before - resident("VmSize") > 60 * MB
    assert slabs.statistics().count == 0


def test_a_slab_that_was_let_go_lives_as_long_as_what_lies_in_it(slabs):
    view = filled(slabs, MB, 3)
    slabs.let_go()
    others = [filled(slabs, MB, seed) for seed in range(20)]
    np.testing.assert_array_equal(view, content(MB, 3))
    check_apart([view, *others])
    del view
    assert slabs.statistics().taken_bytes == 20 * MB


PARTS: dict[str, Callable[[np.ndarray], object]] = {
    "slice": lambda view: view[8:],
    "slice of a slice": lambda view: view[8:][8:],
    "reshaped": lambda view: view.reshape(2, -1),
    "row": lambda view: view.reshape(2, -1)[1],
    "another dtype": lambda view: view.view(np.int64),
    "transposed": lambda view: view.reshape(2, -1).T,
    "memoryview": memoryview,
    "slice of a memoryview": lambda view: memoryview(view)[8:],
    "from a buffer": lambda view: np.frombuffer(view, np.int16),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_view_keeps_its_place(slabs, part):
    view = filled(slabs, 2 * PAGE, 5)
    held = PARTS[part](view)
    expected = np.asarray(held).copy()
    del view
    gc.collect()
    others = [filled(slabs, 2 * PAGE, seed) for seed in range(20)]
    np.testing.assert_array_equal(np.asarray(held), expected)
    del others, held
    gc.collect()
    assert slabs.statistics().taken_bytes == 0


def test_a_tensor_of_a_view_keeps_its_place(slabs):
    torch = pytest.importorskip("torch")
    held = torch.from_numpy(filled(slabs, 2 * PAGE, 5))[16:].view(torch.int32).detach()
    expected = held.clone()
    gc.collect()
    others = [filled(slabs, 2 * PAGE, seed) for seed in range(20)]
    assert torch.equal(held, expected)
    del others, held
    gc.collect()
    assert slabs.statistics().taken_bytes == 0


def test_the_next_slab_is_as_large_as_what_the_last_step_needed(slabs):
    step(slabs, [3 * MB] * 10)
    assert slabs.statistics().count > 1
    step(slabs, [3 * MB] * 10)
    assert (slabs.statistics().count, slabs.statistics().size) == (1, 30 * MB)


def test_steady_steps_share_one_slab(slabs):
    sizes = [random.Random(0).randrange(1, MB) for _ in range(100)]
    step(slabs, sizes), step(slabs, sizes)
    (only,) = slabs._here()._slabs
    for _ in range(5):
        step(slabs, sizes)
        assert slabs._here()._slabs == [only]


def test_a_slab_that_became_much_too_large_makes_room_for_a_smaller_one(slabs):
    step(slabs, [40 * MB]), step(slabs, [40 * MB])
    step(slabs, [2 * MB]), step(slabs, [2 * MB])
    assert slabs.statistics().size == 2 * MB


@pytest.mark.own_process
def test_many_steps_of_changing_sizes_need_no_more_memory(slabs):
    chance = random.Random(0)

    def steps(count: int) -> tuple[int, int]:
        for _ in range(count):
            views = []
            slabs.step_begins()
            for _ in range(chance.randrange(1, 40)):
                views.append(slabs.take(chance.randrange(1, 200_000)))
                views[-1][:] = 1
                if chance.random() < 0.2:
                    views.pop(chance.randrange(len(views)))
        slabs.step_begins()
        return resident("VmRSS"), resident("VmSize")

    before, after = steps(50), steps(500)
    assert after[0] - before[0] < 2 * MB
    assert after[1] - before[1] < 2 * GROWTH
    assert slabs.statistics().count <= 1


def test_an_evaluation_between_steps_changes_nothing(slabs):
    step(slabs, [3 * MB] * 10), step(slabs, [3 * MB] * 10)
    (only,) = slabs._here()._slabs
    for _ in range(3):
        # a forward of the whole model that keeps nothing
        slabs.step_begins()
    assert slabs._here()._slabs == [only]
    step(slabs, [3 * MB] * 10)
    assert slabs._here()._slabs == [only]


def test_two_forwards_before_their_backwards_settle_in_one_slab(slabs):
    for _ in range(4):
        slabs.step_begins()
        views = [slabs.take(MB) for _ in range(20)]
        slabs.step_begins()
        views += [slabs.take(MB) for _ in range(20)]
        check_apart(views)
        views.clear()
    assert slabs.statistics().size <= 40 * MB
    assert slabs.statistics().count == 1


def test_the_peak_is_what_was_taken_at_most(slabs):
    views = [slabs.take(1) for _ in range(5)]
    views.clear()
    slabs.take(1)
    found = slabs.statistics()
    assert (found.peak_bytes, found.taken_bytes) == (5 * PAGE, 0)


@pytest.mark.usefixtures("small_growth")
def test_many_threads_share_slabs(slabs):
    def work(seed: int) -> int:
        chance, held = random.Random(seed), []
        for number in range(200):
            held.append((filled(slabs, chance.randrange(1, 4 * PAGE), number), number))
            if len(held) > 8:
                view, of = held.pop(chance.randrange(len(held)))
                np.testing.assert_array_equal(view, content(view.size, of))
            if number % 50 == 0:
                slabs.step_begins()
        return len(held)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [8] * 8
    gc.collect()
    slabs.step_begins()
    assert slabs.statistics().taken_bytes == 0
    assert slabs.statistics().count <= 1


def test_a_view_that_goes_while_the_lock_is_held_waits_for_nobody(slabs):
    view = slabs.take(PAGE)
    here = slabs._here()
    with here._lock:
        del view
        assert here._slabs[0].taken_bytes == PAGE
    assert slabs.statistics().taken_bytes == 0


def test_what_goes_while_another_thread_holds_the_lock_is_free_right_after(slabs):
    view = slabs.take(PAGE)
    here = slabs._here()
    with here._locked():
        del view
    assert not here._returned
    assert here._slabs[0].taken_bytes == 0


class Cycle:
    """Holds a view until the garbage collection finds it."""

    def __init__(self, view: np.ndarray) -> None:
        self.view, self.itself = view, self


@pytest.mark.usefixtures("small_growth")
def test_garbage_collection_may_run_at_any_moment(slabs):
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for seed in range(300):
            Cycle(filled(slabs, (seed % 3 + 1) * PAGE, seed))
            kept = filled(slabs, PAGE, seed)
            np.testing.assert_array_equal(kept, content(PAGE, seed))
    finally:
        gc.set_threshold(*before)
    del kept
    gc.collect()
    assert slabs.statistics().taken_bytes == 0


def test_slabs_go_with_their_last_view():
    slabs = Slabs()
    view = slabs.take(PAGE)
    gone = weakref.ref(slabs._here()._slabs[0])
    del slabs
    gc.collect()
    view[:] = 1
    assert gone() is not None
    del view
    gc.collect()
    assert gone() is None


def test_a_child_does_not_disturb_its_parent(slabs):
    held = [filled(slabs, MB, seed) for seed in range(4)]
    before = slabs.statistics()

    def work() -> None:
        assert slabs.statistics().count == 0
        np.testing.assert_array_equal(held[3], content(MB, 3))
        mine = [filled(slabs, MB, 10 + seed) for seed in range(4)]
        check_apart([*held, *mine])
        held.pop()
        held[0][:] = 0
        step(slabs, [MB]), step(slabs, [MB])
        slabs.let_go()
        np.testing.assert_array_equal(mine[2], content(MB, 12))
        np.testing.assert_array_equal(held[2], content(MB, 2))

    check_in_child(work)
    assert slabs.statistics() == before
    for seed, view in enumerate(held):
        np.testing.assert_array_equal(view, content(MB, seed))


@pytest.mark.parametrize("first", [Slabs.statistics, Slabs.step_begins, Slabs.let_go, lambda slabs: slabs.take(PAGE)])
def test_a_lock_held_at_the_fork_stops_no_child(slabs, first):
    view = [slabs.take(PAGE)]
    with slabs._here()._lock:

        def work() -> None:
            view.pop()
            first(slabs)

        check_in_child(work)


def test_threads_of_a_child_begin_with_the_same_slabs(slabs):
    slabs.take(PAGE)

    def work() -> None:
        start = threading.Barrier(8)

        def take(seed: int) -> np.ndarray:
            start.wait(PATIENCE)
            return filled(slabs, 3 * PAGE, seed)

        with ThreadPoolExecutor(8) as threads:
            views = list(threads.map(take, range(8)))
        check_apart(views)
        assert slabs.statistics().taken_bytes == 8 * 3 * PAGE

    check_in_child(work)


def limit_address_space(more: int) -> None:
    """Let this process have only so many bytes more."""
    limit = resident("VmSize") + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def test_without_memory_left_the_error_says_so(slabs):
    def work() -> None:
        limit_address_space(64 * MB)
        with pytest.raises(MemoryError, match=f"no {pages(10**9)} bytes left for codes"):
            slabs.take(10**9)
        slabs.take(MB)[:] = 1
        assert slabs.statistics().taken_bytes == 0

    check_in_child(work)


def test_near_the_limit_of_memory_a_slab_is_no_larger_than_needed(slabs):
    def work() -> None:
        step(slabs, [200 * MB])
        slabs.step_begins()
        held = slabs.take(MB)
        limit_address_space(10 * MB)
        # as large as the last step needed, and the usual growth, are both too much
        slabs._here()._slabs[0].take(199 * MB)
        slabs.take(2 * MB)[:] = 1
        assert slabs.statistics().count == 2
        del held

    check_in_child(work)


def test_near_the_limit_of_memory_a_free_slab_makes_room(slabs):
    def work() -> None:
        step(slabs, [40 * MB])
        limit_address_space(20 * MB)
        slabs.take(50 * MB)[:] = 1

    check_in_child(work)


@pytest.mark.parametrize(("size", "in_slab"), [(LEAST_BYTES - 1, False), (LEAST_BYTES, True)])
def test_only_what_is_worth_a_place_is_put_in_a_slab(slabs, size, in_slab):
    buffer = Memory(slabs).allocate(NumpyArrays(), size, np.empty(0, np.float32))
    assert (buffer.size, buffer.dtype) == (size, np.uint8)
    assert bool(slabs.statistics().taken_bytes) == in_slab


def test_a_closed_store_keeps_no_slab(slabs):
    store = Memory(slabs)
    store.allocate(NumpyArrays(), MB, np.empty(0, np.float32))
    assert slabs.statistics().count == 1
    store.close()
    assert slabs.statistics().count == 0
