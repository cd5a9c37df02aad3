"""The state of a session: plain data, complete, versioned, and refused where it belongs to another conversion."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from actnn.errors import SessionError
from actnn.format import AFFINE, uniform_layout
from actnn.planning.learnt import NoiseOfLogits
from actnn.planning.noise import Transfer
from actnn.planning.records import Observation, Passing
from actnn.session.session import Session
from actnn.settings import Config

FIXTURES = Path(__file__).parent.parent / "fixtures"
# what a new process has of its own, what conversion gives, and what follows from the rest
NO_STATE = {
    "session": {
        "policy",
        "store",
        "stream",
        *("_process", "_noise"),
        "left_exact",
        "other_kinds",
        "shared_gradients",
        "tags",
        "waiting_gradients",
        "closed",
        "watch",
        "backward_noted",
        # a state is taken between steps, of a conversion that stays
        *("over", "conversion", "_begin", "serves_calls"),
        "_wrapper",
    },
    "site": {
        *("session", "name", "kind", "index", "group", "batch_norm", "extra", "bits", "adaptive", "compresses"),
        *("plans", "_own_bits", "_family", "of_values", "of_rectified"),
        # looked at anew where it is not known, or set again by the first call of the function
        *("fixed", "parameter"),
    },
    "planner": {
        *(
            "policy",
            "statistics",
            "epoch",
            "active",
            "observing",
            "traces",
            "weighing",
            "_unread",
            "_waiting",
        ),
        *("_batch_norms", "_placed_norms"),
    },
    "lessons": {"predictions", "_factor", "_felt"},
    "budget": {"_sizes"},
}
STATE = {
    "session": {"seed", "sites", "planner", "step", "backward_seen", "_whole", "_call_sites"},
    "site": {
        *("encoded", "step", "account", "expected", "seen", "gradient", "weights", "share", "transfer", "below"),
        *("handed_down", "energy", "sampling", "passing", "noise", "depthwise"),
    },
    "planner": {
        *("budget", "norms", "indices", "lessons", "_steps", "_coding"),
        *("_sharing", "_left_over", "_added"),
    },
    "lessons": {"handed_down", "observed", "gradients", "energies", "sound"},
    "budget": {"limit", "measuring", "other_bytes", "_chosen", "_fixed", "_scale", "_settled", "_coded"},
}


def converted(level: str = "L3", names: str = "ab", **options) -> Session:
    session = Session(Config().policy(level), **options)
    for name in names:
        session.site(name, "QLinear")
    return session


def at_work(**options) -> Session:
    """Return a session in whose planner two records share one batch."""
    session = converted(**options)
    first, second = session.sites
    planner = session.planner
    planner.indices = np.arange(4)
    layout = uniform_layout(4, 300, AFFINE, 2, session.policy.rounding)
    for site in (first, second):
        record = planner.record(site, layout, 8)
        record.layout.block.ranges[:] = 1.0
        record.layout.block.sample_bits[:] = 2
        span = planner.statistics.span(4)
        span.values[:] = [1.0, 2.0, 3.0, 4.0]
        planner.observe(Observation(record, site, np.ones(4), 0.5, span))
        planner.observe(Passing(record, site, np.ones(4), lambda: 0.25))
        planner.energy(site, span)
        session.key(site)
    first.below, first.noise = second, NoiseOfLogits([12, 16], 0.01, 3)
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


@pytest.mark.parametrize("part", NO_STATE)
def test_every_attribute_is_state_or_known_to_be_none(part: str):
    session = converted(memory=10**6)
    found = {
        "session": session,
        "site": session.sites[0],
        "planner": session.planner,
        "lessons": session.planner.lessons,
        "budget": session.planner.budget,
    }
    assert set(vars(found[part])) == STATE[part] | NO_STATE[part]


def test_no_private_name_is_written():
    state = at_work(memory=10**6).state_dict()
    names = {name for part in plain_parts(state) if isinstance(part, dict) for name in part}
    assert [name for name in names if name.startswith("_")] == []


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
    records = loaded.planner.records
    assert len(records) == 2
    assert records[0].indices is records[1].indices
    # the planner asks whether it is the very same
    assert loaded.sites[0].transfer is loaded.sites[1].transfer


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
    assert other.state_dict() == state


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
        lambda state: state.pop("planner"),
        lambda state: state["progress"].pop("step"),
        lambda state: state["transfers"].clear(),
        lambda state: state["planner"]["records"][0]["ranges"].update(shape=[1]),
        lambda state: state["planner"]["records"][0]["ranges"].update(bytes="AAAA"),
        lambda state: state["sites"][0].update(account={"unknown": 1}),
        lambda state: state["sites"][0].update(below=7),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    session, state = at_work(), at_work().state_dict()
    damage(state)
    before = session.state_dict()
    with pytest.raises(SessionError, match="damaged"):
        session.load_state_dict(state)
    assert session.state_dict() == before


def of_version_1(kind: str) -> dict:
    return json.loads((FIXTURES / f"session_1_{kind}.json").read_text())


def converted_like(state: dict, **options) -> Session:
    """Return a session of the model that a stored state belongs to."""
    session = Session(Config().policy("L3"), **options)
    for name, kind, group in state["names"]:
        session.site(name, kind, group)
    return session


@pytest.mark.parametrize(("kind", "options"), [("bits", {}), ("bytes", {"memory": 20000})])
def test_a_state_of_version_1_is_read_for_ever(kind: str, options: dict):
    state = of_version_1(kind)
    session = converted_like(state, **options)
    session.load_state_dict(state)
    again = converted_like(state, **options)
    again.load_state_dict(session.state_dict())
    assert again.state_dict() == session.state_dict()
    first = state["sites"][0]
    assert session.seed == state["session"]["seed"] == 5
    assert session.sites[0].encoded == first["encoded"] == 4
    assert session.sites[0].gradient == first["gradient"]
    assert session.sites[0].share[0] == AFFINE
    assert len(session.planner.records) == 5
    assert {record.site.name for record in session.planner.records} == {"0", "3", "6", "9", "10"}
    # and it goes on: a forward begins, from what the last backward told
    session.forward_begins(np.arange(8))
    assert session.planner.records == []
    assert session.planner.state()["steps"] == session.sites[0].step + 1


@pytest.mark.parametrize("damage", [lambda state: state.pop("objects"), lambda state: state["objects"].clear()])
def test_a_damaged_state_of_version_1_is_refused(damage):
    state = of_version_1("bits")
    session = converted_like(state)
    damage(state)
    with pytest.raises(SessionError, match="damaged"):
        session.load_state_dict(state)
