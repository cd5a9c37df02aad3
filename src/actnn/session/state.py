"""A session's state as plain data: what a checkpoint holds beside weights, so that training goes on bit for bit.

Plain data are None, numbers, strings, lists, and dictionaries with strings for keys: any format stores them, and
reading them runs no code. Every part of a session says itself which entries its state has; sites are named by index.
The format has a version, and states of older versions are read for ever (``session.old_states``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from actnn.errors import SessionError
from actnn.format import FAMILIES
from actnn.planning.learnt import NoiseOfLogits
from actnn.planning.noise import Transfer
from actnn.planning.plain import Plain, array_of, plain_array
from actnn.planning.records import known
from actnn.session.old_states import upgraded
from actnn.session.site import Account, Readers, Site
from actnn.settings import Policy

if TYPE_CHECKING:
    from actnn.session.session import Session

FORMAT = "actnn session 2"
ADVICE = "Convert the same model with the same settings as the one that was saved."
# settings that change neither codes nor gradients: a run may go on with others
FREE_SETTINGS = ("swap", "swap_dir", "swap_bytes", "arena", "overwrite", "trim_threshold", "log_memory", "log_speed")
DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def state_of(session: Session) -> Plain:
    """Return everything by which the next steps of a session differ from those of one just made.

    A step must be over: its backward done, nothing of it kept any more.
    """
    planner = session.planner.state()
    transfers: list[Transfer] = []
    return {
        "format": FORMAT,
        "policy": settings_of(session.policy),
        "layers": layers_of(session),
        "progress": session.progress(),
        "calls": session.calls(),
        "sites": [site_state(site, transfers) for site in session.sites],
        "transfers": [{"aligned": plain_array(each.aligned), "patch": each.patch} for each in transfers],
        "planner": planner,
    }


def load_state(session: Session, state: Mapping[str, Any]) -> None:
    """Let a session go on where another one of the same model was; the session stays as it was where that fails."""
    state = current(state)
    if session.swaps_activations and state.get("layers"):
        # its only site is made in the first forward
        session.whole_model()
    own, saved = settings_of(session.policy), state.get("policy")
    if isinstance(saved, Mapping):
        # states of versions that knew no companding, or no codes of other functions, go on with them or without;
        # companding was two settings once
        saved = {name: own[name] for name in ("companding", "other_bits")} | dict(saved)
        saved.pop("companding_batch_norm", None)
    check_equal("settings", own, saved)
    make_call_sites(session, state)
    check_equal("layers", layers_of(session), state.get("layers"))
    before = state_of(session)
    try:
        budget = state["planner"]["budget"]
        check_equal("memory budget", limit_of(session), None if budget is None else budget["limit"])
        take(session, state)
    except DAMAGED as problem:
        take(session, before)
        raise SessionError(f"the state of this session is damaged ({problem!r}): use another checkpoint.") from problem
    session.tags.clear()


def make_call_sites(session: Session, state: Mapping[str, Any]) -> None:
    """Make the sites of functions that the saved model had called and this one has not called yet."""
    if session.policy.compress:
        for index, batch_norm, extra in state.get("calls", ()):
            if index == len(session.sites):
                name, kind, _ = state["layers"][index]
                session.call_site(name, kind, batch_norm, extra)


def current(state: Any) -> Mapping[str, Any]:
    """Return a state in the present format, whatever version it has; raise SessionError for anything else."""
    if isinstance(state, Mapping):
        try:
            state = upgraded(state)
        except DAMAGED as problem:
            raise SessionError(
                f"the state of this session is damaged ({problem!r}): use another checkpoint."
            ) from problem
        if state.get("format") == FORMAT:
            found: Mapping[str, Any] = state
            return found
    raise SessionError(
        "what was given is not the state of a session that this version knows: expected what session_state() returns."
    )


def take(session: Session, state: Mapping[str, Any]) -> None:
    """Give a session all that a state holds."""
    transfers = [Transfer(known(each["aligned"]), each["patch"]) for each in state["transfers"]]
    for site, saved in zip(session.sites, state["sites"], strict=True):
        load_site(site, saved, session.sites, transfers)
    session.planner.load(state["planner"], session.sites)
    session.load_progress(state["progress"])


def site_state(site: Site, transfers: list[Transfer]) -> Plain:
    """Return the state of a site; the transfers that several sites know lie in a list."""
    return {
        "codes": site.encoded,
        "step": site.step,
        "account": site.account.state(),
        "expected": asdict(site.expected),
        "seen": None if site.seen is None else asdict(site.seen),
        "gradient": site.gradient,
        "weights": plain_array(site.weights),
        "share": None if site.share is None else [site.share[0].name, site.share[1]],
        "transfer": place_of(site.transfer, transfers),
        "below": None if site.below is None else site.below.index,
        "handed_down": site.handed_down,
        "energy": site.energy,
        "sampling": site.sampling,
        "passing": site.passing,
        "noise": None if site.noise is None else list(site.noise),
        "depthwise": site.depthwise,
    }


def load_site(site: Site, state: Plain, sites: Sequence[Site], transfers: Sequence[Transfer]) -> None:
    """Give a site its state."""
    site.encoded, site.step, site.account = state["codes"], state["step"], Account.of(state["account"])
    site.expect(readers_of(state["expected"]))
    site.seen = None if state["seen"] is None else readers_of(state["seen"])
    site.gradient, site.weights = state["gradient"], array_of(state["weights"])
    share = state["share"]
    site.share = None if share is None else (FAMILIES[share[0]], share[1])
    site.transfer = None if state["transfer"] is None else transfers[state["transfer"]]
    site.below = None if state["below"] is None else sites[state["below"]]
    site.handed_down = state["handed_down"]
    # states once did not tell these
    site.energy, site.sampling, site.passing = (state.get(name) for name in ("energy", "sampling", "passing"))
    site.depthwise = state.get("depthwise", False)
    noise = state.get("noise")
    site.noise = None if noise is None else NoiseOfLogits(*noise)


def readers_of(state: Plain) -> Readers:
    """Return the readers of a code; states once did not tell whether a rectifier overwrites what it reads."""
    return Readers.of(**{"overwrites": state["sides"], **state})


def place_of(transfer: Transfer | None, transfers: list[Transfer]) -> int | None:
    """Return the place of a transfer in a list, where it is put if need be."""
    if transfer is None:
        return None
    for place, known_one in enumerate(transfers):
        if known_one is transfer:
            return place
    transfers.append(transfer)
    return len(transfers) - 1


def settings_of(policy: Policy) -> Plain:
    """Return the settings on which codes depend."""
    settings = {name: value for name, value in asdict(policy).items() if name not in FREE_SETTINGS}
    return settings | {"bits": list(policy.bits), "rounding": policy.rounding.name}


def layers_of(session: Session) -> list[list[Any]]:
    """Return what conversion made of the model."""
    return [[site.name, site.kind, site.group] for site in session.sites]


def limit_of(session: Session) -> int | None:
    """Return the bytes that a session may keep."""
    return None if session.planner.budget is None else session.planner.budget.limit


def check_equal(what: str, own: Any, saved: Any) -> None:
    """Raise SessionError where a state is that of another conversion; say the first difference."""
    if own == saved:
        return
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        name = next(name for name in {**own, **saved} if own.get(name) != saved.get(name))
        what, own, saved = name, own.get(name), saved.get(name)
    elif isinstance(own, list) and isinstance(saved, list):
        pairs = zip(own, saved, strict=False)
        own, saved = next(((mine, other) for mine, other in pairs if mine != other), (len(own), len(saved)))
    raise SessionError(f"the saved session has {what} {saved!r}, this one {own!r}. {ADVICE}")
