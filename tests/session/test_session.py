"""Sessions: keys that never repeat, steps, and the end of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from actnn.errors import ConfigError, SessionError
from actnn.session.session import Session
from actnn.settings import Config


def session(seed: int = 0, stream: int = 0, level: str = "L2") -> Session:
    return Session(Config().policy(level), seed, stream)


def keys(session: Session, count: int = 3) -> list[tuple[int, ...]]:
    """Return the first keys of two sites."""
    sites = [session.site(name, "QLinear") for name in "ab"]
    return [session.key(site) for _ in range(count) for site in sites]


def test_no_two_codes_of_a_session_share_a_key():
    found = keys(session(), 100)
    assert len(set(found)) == len(found)


def test_equal_seeds_give_equal_keys():
    assert keys(session(3)) == keys(session(3))


def test_other_seeds_give_other_keys():
    assert not set(keys(session(3))) & set(keys(session(4)))


def test_sessions_of_one_process_draw_different_keys():
    assert not set(keys(session(stream=0))) & set(keys(session(stream=1)))


def test_processes_of_one_training_draw_different_keys_however_late_they_are_numbered():
    number = 0
    one, policy = session(), Config().policy("L2")
    other = Session(policy, process=lambda: number)
    number = 1
    assert not set(keys(one)) & set(keys(other))


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "1", None, True], ids=repr)
def test_a_seed_that_is_no_64_bit_number_is_refused(seed):
    with pytest.raises(ConfigError, match="seed="):
        session(seed)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_every_64_bit_seed_makes_keys(seed):
    found = keys(session(seed))
    assert len(set(found)) == len(found)
    assert all(0 <= word < 2**32 for key in found for word in key)


def test_a_closed_session_tells_what_to_do():
    closed = session()
    closed.close()
    with pytest.raises(SessionError, match="Convert the model again"):
        closed.check_open()


def test_an_open_session_is_open_and_makes_keys():
    one = session()
    one.check_open()
    assert not one.closed
    assert len(keys(one)) == 6


def test_a_site_with_a_group_that_has_no_width_is_refused():
    with pytest.raises(ConfigError, match="group=3"):
        session().site("conv", "QConv2d", group=3)


def test_a_session_survives_pickling_with_its_place_in_the_noise():
    original = session(5)
    before = keys(original)
    copy = pickle.loads(pickle.dumps(original))
    assert copy.key(copy.sites[0]) == original.key(original.sites[0])
    assert original.key(original.sites[1]) not in before


def test_the_noise_of_numpy_seeds_is_accepted_as_whole_numbers_only():
    with pytest.raises(ConfigError):
        session(np.float64(1.0))
