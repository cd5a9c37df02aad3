"""The state of a session: plain data, complete, and refused where it belongs to another conversion."""

from __future__ import annotations

import json
from collections import deque

import numpy as np
import pytest

from actnn.errors import SessionError
from actnn.format import AFFINE, uniform_layout
from actnn.planning.noise import Transfer
from actnn.planning.records import Record
from actnn.session import state
from actnn.session.session import Session
from actnn.session.site import Site
from actnn.session.state import NOT_STATE, SESSION_STATE, attribute_names
from actnn.settings import Config

# what a new process has of its own, or what conversion gives
OF_THE_CONVERSION = {"policy", "store", "stream", "sites", "left_exact", "other_kinds", "tags", "closed", "_wrapper"}


def converted(level: str = "L3", names: str = "ab", **options) -> Session:
    session = Session(Config().policy(level), **options)
    for name in names:
        session.site(name, "QLinear")
    return session


def at_work(**options) -> Session:
    """Return a session in whose planner two records share one batch."""
    session = converted(**options)
    first, second = session.sites
    indices = np.arange(4)
    layout = uniform_layout(4, 300, AFFINE, 2, session.policy.rounding)
    for site in (first, second):
        record = Record(site, layout, np.ones((4, 4)), indices, relative=[np.array([1.0, 2.0, 3.0, 4.0])])
        session.planner.observe(record, site, np.ones(4), 0.5, np.array([1.0, 2.0, 3.0, 4.0]))
        session.key(site)
    first.below = second
    first.transfer = second.transfer = Transfer(np.ones(3), 0.5)
    return session


def plain_parts(data):
    """Yield everything that a state is made of."""
    yield data
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for part in parts:
        yield from plain_parts(part)


def test_a_state_is_plain_data():
    for part in plain_parts(at_work().state_dict()):
        assert type(part) in (type(None), bool, int, float, str, list, dict)
        if isinstance(part, dict):
            assert {type(key) for key in part} <= {str}


def test_a_state_survives_its_way_through_json():
    loaded = converted()
    loaded.load_state_dict(json.loads(json.dumps(at_work().state_dict())))
    assert loaded.state_dict() == at_work().state_dict()


def test_every_attribute_of_a_session_is_saved_or_known_to_be_no_state():
    assert set(vars(converted())) == {*SESSION_STATE, *OF_THE_CONVERSION}


@pytest.mark.parametrize("options", [{}, {"memory": 10**6}], ids=["bits", "bytes"])
def test_a_loaded_session_has_the_state_of_the_saved_one(options):
    saved, loaded = at_work(**options), converted(**options)
    loaded.load_state_dict(saved.state_dict())
    assert loaded.state_dict() == saved.state_dict()
    assert loaded.key(loaded.sites[0]) == saved.key(saved.sites[0])
    assert loaded.sites[0].below is loaded.sites[1]
    assert loaded.planner.policy is loaded.policy


def test_what_is_shared_stays_shared():
    loaded = converted()
    loaded.load_state_dict(at_work().state_dict())
    records = [record for own in loaded.planner._observed.values() for record in own]
    assert len(records) == 2
    assert records[0].indices is records[1].indices
    # the planner asks whether it is the very same
    assert loaded.sites[0].transfer is loaded.sites[1].transfer
    assert isinstance(loaded.planner._observed[loaded.sites[0]], deque)


def test_loading_does_not_tie_two_sessions_together():
    saved, loaded = at_work(), converted()
    state = saved.state_dict()
    loaded.load_state_dict(state)
    loaded.forward_begins()
    saved.forward_begins()
    first, second = (session.sites[0].weights for session in (saved, loaded))
    np.testing.assert_array_equal(first, second)
    loaded.sites[0].weights[:] = 0
    assert saved.sites[0].weights.all()
    other = converted()
    other.load_state_dict(state)
    assert other.state_dict()["session"] == state["session"]


def test_the_seed_is_state_and_the_number_of_the_process_is_not():
    loaded = converted(seed=1, stream=2)
    loaded.load_state_dict(converted(seed=5).state_dict())
    assert (loaded.seed, loaded.stream) == (5, 2)


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"level": "L2"}, r"bits \[4.0\], this one \[2.0\]"),
        ({"names": "abc"}, "layers 3, this one 2"),
        ({"names": "ax"}, r"layers \['x', 'QLinear', 0\], this one \['b', 'QLinear', 0\]"),
        ({"memory": 10**6}, "memory budget 1000000, this one None"),
    ],
)
def test_the_state_of_another_conversion_is_refused_and_changes_nothing(other, complaint):
    session = at_work()
    before = session.state_dict()
    with pytest.raises(SessionError, match=complaint):
        session.load_state_dict(converted(**other).state_dict())
    assert session.state_dict() == before


@pytest.mark.parametrize("level", ["L4", "L5"])
def test_where_codes_wait_may_change_between_saving_and_loading(level):
    loaded, saved = converted("L3"), converted(level, seed=5)
    loaded.load_state_dict(saved.state_dict())
    assert loaded.state_dict() == saved.state_dict()
    assert loaded.policy == converted("L3").policy


@pytest.mark.parametrize("foreign", [{}, {"format": "actnn session 0"}, [], None, "state"], ids=repr)
def test_what_is_no_state_is_refused(foreign):
    with pytest.raises(SessionError, match="not the state of a session"):
        converted().load_state_dict(foreign)


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("objects"),
        lambda state: state["session"].pop("planner"),
        lambda state: state["objects"].clear(),
        lambda state: state["objects"][0]["array"].append(1),
        lambda state: state["objects"][0]["array"].__setitem__(2, "AAAA"),
        lambda state: state["sites"][0].update(account={"Unknown": {}}),
        lambda state: state["sites"][0].update(below={"site": 7}),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    session, state = at_work(), at_work().state_dict()
    damage(state)
    before = session.state_dict()
    with pytest.raises(SessionError, match="damaged"):
        session.load_state_dict(state)
    assert session.state_dict() == before


def test_state_of_a_kind_that_nobody_can_read_is_not_written():
    session = converted()
    session.sites[0].gradient = object()
    with pytest.raises(SessionError, match="a session holds a object"):
        session.state_dict()


def test_what_is_left_out_exists():
    session = converted()
    for thing in (session.planner, session.sites[0]):
        assert set(NOT_STATE[type(thing)]) <= set(vars(thing))
        assert not set(NOT_STATE[type(thing)]) & set(attribute_names(thing))
    assert Site in NOT_STATE
    assert state.FORMAT.startswith("actnn session")
