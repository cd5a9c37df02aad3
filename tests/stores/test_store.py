"""Stores of a session: what is put comes back, and goes when nobody holds what was saved in its place."""

from __future__ import annotations

import gc
import pickle
import warnings
import weakref
from copy import deepcopy

import numpy as np
import pytest
from patience import PATIENCE, until
from stand_in_device import StandInArrays

from actnn.errors import ConfigError, SwapError
from actnn.kernels.numpy_arrays import NumpyArrays
from actnn.session.session import Session
from actnn.settings import Config
from actnn.stores import store
from actnn.stores.store import LEAST_BYTES, Memory, Swap

ARRAYS = NumpyArrays()


@pytest.fixture
def swap(tmp_path, monkeypatch):
    # room for one buffer: all others go to disk at once
    monkeypatch.setattr(store, "BUFFER_BYTES", LEAST_BYTES)
    made = Swap(str(tmp_path), None)
    yield made
    made.close()


def content(seed, size=2 * LEAST_BYTES):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def emptied(swap):
    until(lambda: swap.statistics().file_bytes == swap.statistics().memory_bytes == 0)
    assert swap.statistics().unknown_releases == 0


def session(level="L4", **settings):
    config = Config()
    config.set_optimization_level(level)
    for name, value in settings.items():
        setattr(config, name, value)
    return Session(config.policy())


def test_memory_leaves_buffers_where_they_are():
    buffer = content(0)
    assert Memory().put(ARRAYS, buffer) is buffer
    assert Memory().get(ARRAYS, buffer) is buffer


def test_what_is_swapped_comes_back_in_any_order_and_more_than_once(swap):
    tickets = [swap.put(ARRAYS, content(seed)) for seed in range(20)]
    for seed in (*reversed(range(20)), *range(20)):
        np.testing.assert_array_equal(swap.get(ARRAYS, tickets[seed]), content(seed))
    assert swap.statistics().read_bytes > 0


@pytest.mark.parametrize("size", [0, 1, LEAST_BYTES - 1])
def test_a_small_buffer_stays_in_memory(swap, size):
    buffer = content(0, size)
    saved = swap.put(ARRAYS, buffer)
    assert saved is buffer
    assert swap.get(ARRAYS, saved) is buffer


def test_a_buffer_of_the_least_size_is_swapped(swap):
    ticket = swap.put(ARRAYS, content(0, LEAST_BYTES))
    assert (ARRAYS.dtype(ticket), ticket.shape) == ("int64", (1,))
    np.testing.assert_array_equal(swap.get(ARRAYS, ticket), content(0, LEAST_BYTES))


def test_a_buffer_of_another_device_goes_to_the_host_and_not_to_disk(swap):
    arrays, buffer = StandInArrays(), content(0)
    ticket = swap.put(arrays, buffer)
    assert ARRAYS.dtype(ticket) == "int64"
    np.testing.assert_array_equal(swap.get(arrays, ticket), buffer)
    assert swap.statistics().memory_bytes == swap.statistics().file_bytes == 0
    assert swap.offload_statistics().out_bytes == buffer.size


def test_a_place_is_free_when_its_ticket_goes(swap):
    tickets = [swap.put(ARRAYS, content(seed)) for seed in range(5)]
    until(lambda: swap.statistics().memory_bytes == 0)
    assert swap.statistics().file_bytes == 5 * 2 * LEAST_BYTES
    tickets.pop(2)
    until(lambda: swap.statistics().file_bytes == 4 * 2 * LEAST_BYTES)
    tickets.clear()
    emptied(swap)


def test_whatever_shares_the_memory_of_a_ticket_keeps_its_place(swap):
    view = swap.put(ARRAYS, content(0))[:]
    gc.collect()
    np.testing.assert_array_equal(swap.get(ARRAYS, view), content(0))
    del view
    emptied(swap)


def test_a_ticket_that_was_copied_and_thrown_away_is_an_error(swap):
    copied = swap.put(ARRAYS, content(0)).copy()
    swap.put(ARRAYS, content(1))
    with pytest.raises(SwapError, match="no code"):
        swap.get(ARRAYS, copied)


def test_tickets_that_go_in_a_cycle_free_their_places(swap):
    for seed in range(5):
        cycle = [swap.put(ARRAYS, content(seed))]
        cycle.append(cycle)
    del cycle
    gc.collect()
    emptied(swap)


def test_a_store_ends_when_neither_its_owner_nor_a_ticket_holds_it(tmp_path):
    swap = Swap(str(tmp_path), None)
    ticket = swap.put(ARRAYS, content(0))
    held, thread = weakref.ref(swap._store), swap._store._engine._thread
    del swap
    gc.collect()
    np.testing.assert_array_equal(held().get(int(ticket[0])), content(0))
    assert thread.is_alive()
    del ticket
    gc.collect()
    thread.join(PATIENCE)
    assert held() is None
    assert not thread.is_alive()


def test_a_closed_store_says_so_and_takes_tickets_back(swap):
    ticket = swap.put(ARRAYS, content(0))
    swap.close()
    with pytest.raises(SwapError, match="closed"):
        swap.get(ARRAYS, ticket)
    with pytest.raises(SwapError, match="closed"):
        swap.put(ARRAYS, content(1))
    del ticket
    gc.collect()
    swap.close()


def test_a_limit_leaves_the_rest_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "BUFFER_BYTES", LEAST_BYTES)
    swap = Swap(str(tmp_path), 5 * LEAST_BYTES)
    with pytest.warns(UserWarning, match="limit of"):
        tickets = [swap.put(ARRAYS, content(seed)) for seed in range(8)]
    for seed in reversed(range(8)):
        np.testing.assert_array_equal(swap.get(ARRAYS, tickets[seed]), content(seed))
    until(lambda: swap.statistics().kept_bytes == 6 * 2 * LEAST_BYTES)
    tickets.clear()
    emptied(swap)
    swap.close()


@pytest.mark.parametrize(("level", "kind"), [("L0", Memory), ("L2", Memory), ("L3", Memory), ("L4", Swap)])
def test_a_session_has_the_store_of_its_level(level, kind):
    assert isinstance(session(level).store, kind)


def test_a_session_swaps_at_other_levels_where_it_is_asked_to():
    assert isinstance(session("L2", swap=True).store, Swap)


def test_a_session_refuses_a_directory_that_is_missing(tmp_path):
    with pytest.raises(ConfigError, match="missing"):
        session(swap_dir=tmp_path / "missing")


def test_a_session_uses_its_directory_and_its_limit(tmp_path):
    one = session(swap_dir=tmp_path, swap_bytes=1)
    file = one.store._store._engine._file
    assert (file.directory, file.most_bytes) == (tmp_path, 1)


@pytest.mark.parametrize("copied", [deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_a_copied_session_has_a_store_of_its_own(copied):
    one = session()
    ticket = one.store.put(ARRAYS, content(0))
    other = copied(one)
    other.close()
    np.testing.assert_array_equal(one.store.get(ARRAYS, ticket), content(0))
    one.close()


def test_a_closed_session_closes_its_store():
    one = session()
    one.store.put(ARRAYS, content(0))
    one.close()
    with pytest.raises(SwapError, match="closed"):
        one.store.put(ARRAYS, content(0))


def test_a_site_accounts_for_what_it_swaps():
    one = session()
    site = one.site("layer", "QConv2d")
    site.keeps(2 * LEAST_BYTES, 8 * LEAST_BYTES)
    site.keeps(10)
    tickets = [site.store(ARRAYS, content(0)), site.store(ARRAYS, content(0, 10))]
    assert one.report().swapped_bytes == 2 * LEAST_BYTES
    assert one.report().kept_bytes == 2 * LEAST_BYTES + 10
    del tickets
    one.close()


def test_a_site_does_not_count_as_swapped_what_stays_in_memory():
    one = session(swap_bytes=5 * LEAST_BYTES)
    site = one.site("layer", "QConv2d")
    # a put warns where it comes after the write that failed, else the get
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tickets = [site.store(ARRAYS, content(seed)) for seed in range(8)]
        until(lambda: one.store.statistics().file_bytes + one.store.statistics().kept_bytes == 16 * LEAST_BYTES)
        one.store.get(ARRAYS, tickets[0])
    assert [warning.filename for warning in told] == [__file__]
    # two buffers fit into the file
    assert one.report().swapped_bytes == 2 * 2 * LEAST_BYTES
    del tickets
    one.close()


@pytest.mark.parametrize("level", ["L3", "L4"])
def test_a_memory_budget_counts_only_what_is_in_memory_as_kept_by_others(level):
    one = Session(Config().policy(level), memory=10**6)
    site = one.site("layer", "QConv2d")
    site.keeps(2 * LEAST_BYTES)
    saved = site.store(ARRAYS, content(0))
    one.all_kept(saved.nbytes + 1000)
    assert one.planner.budget.other_bytes == (1000 if level == "L3" else 1000 + saved.nbytes)
    one.close()
