"""States of sessions that older versions wrote, turned into those of the present format.

Version 1 named the private attributes of objects. Objects and arrays lay in a list of their own and were named by their
place in it; whatever was neither plain nor a list was a dictionary of one entry, the name of its kind and what it held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actnn.planning.plain import Plain

VERSION_1 = "actnn session 1"
PRESENT = "actnn session 2"


def upgraded(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state in the present format; one that is no old state is returned as it is."""
    return from_version_1(state) if state.get("format") == VERSION_1 else state


def from_version_1(state: Mapping[str, Any]) -> Plain:
    """Return what version 1 wrote in the present format."""
    old = Objects(state["objects"])
    session = state["session"]
    planner = old.content(session["planner"])
    transfers: list[int] = []
    sites = [site(old, each, transfers) for each in state["sites"]]
    return {
        "format": PRESENT,
        "policy": state["policy"],
        "layers": state["names"],
        "progress": {
            "seed": session["seed"],
            "step": session["_step"],
            "backward_seen": session["_backward_seen"],
            "whole": session["_whole"],
        },
        "sites": sites,
        "transfers": [transfer(old, place) for place in transfers],
        "planner": of_planner(old, planner),
        **({"samples": state["samples"]} if "samples" in state else {}),
    }


class Objects:
    """The objects of a state of version 1, by their place."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = objects

    def content(self, plain: Any) -> Any:
        """Return what a value holds: the attributes of an object, an array as the present format has it."""
        if isinstance(plain, list):
            return [self.content(each) for each in plain]
        if not isinstance(plain, dict):
            return plain
        ((kind, held),) = plain.items()
        known: Mapping[str, Callable[[Any], Any]] = {
            "object": lambda place: self.content(self._objects[place]),
            "array": lambda array: dict(zip(("dtype", "shape", "bytes"), array, strict=True)),
            "tuple": self.content,
            "set": self.content,
            "deque": lambda deque: self.content(deque[1]),
            "dict": lambda pairs: [[self.content(key), value] for key, value in pairs],
        }
        return known.get(kind, lambda rest: rest)(held)


def place(plain: Any) -> int | None:
    """Return the place of an object."""
    return None if plain is None else int(plain["object"])


def numbered(number: int | None, seen: list[int]) -> int | None:
    """Return the place of a number in a list, where it is put if need be."""
    if number is None:
        return None
    if number not in seen:
        seen.append(number)
    return seen.index(number)


def site(old: Objects, state: Plain, transfers: list[int]) -> Plain:
    """Return the state of a site."""
    share = old.content(state["share"])
    return {
        "codes": state["encoded"],
        "step": state["step"],
        "account": old.content(state["account"]),
        "expected": old.content(state["expected"]),
        "seen": old.content(state["seen"]),
        "gradient": state["gradient"],
        "weights": old.content(state["weights"]),
        "share": None if share is None else [share[0]["name"], share[1]],
        "transfer": numbered(place(state["transfer"]), transfers),
        "below": None if state["below"] is None else state["below"]["site"],
        "handed_down": state["handed_down"],
    }


def transfer(old: Objects, number: int) -> Plain:
    """Return a transfer."""
    held = old.content({"object": number})
    return {"aligned": old.content(held["aligned"]), "patch": held["patch"]}


def of_planner(old: Objects, planner: Plain) -> Plain:
    """Return the state of a planner."""
    batches: list[int] = []
    observed = [record for _, own in old.content(planner["_observed"]) for record in own["deque"][1]]
    records = []
    for each in observed:
        held = old.content(each)
        records.append(record(old, held) | {"batch": numbered(place(held["indices"]), batches)})
    indices = numbered(place(planner["indices"]), batches)
    budget = old.content(planner["budget"])
    return {
        "steps": planner["_steps"],
        "coding": planner["_coding"],
        "sound": planner["_sound"],
        "handed_down": planner["handed_down"],
        "norms": old.content(old.content(planner["norms"])["_norms"]),
        "batches": [old.content({"object": number}) for number in batches],
        "indices": indices,
        "records": records,
        "gradients": [[key, *old.content(value)] for key, value in old.content(planner["_gradients"])],
        "sharing": sorted(old.content(planner["_sharing"])),
        "left_over": [[key, value] for key, value in old.content(planner["_left_over"])],
        "added": [[*key, value] for key, value in old.content(planner["_added"])],
        "budget": None if budget is None else of_budget(old, budget),
    }


def record(old: Objects, held: Plain) -> Plain:
    """Return a record."""
    layout = old.content(held["layout"])
    widths = old.content(layout["sample_bits"]) or [layout["bits"]] * layout["samples"]
    return {
        "site": held["site"]["site"],
        "family": old.content(layout["family"])["name"],
        "elements": layout["elements"],
        "rounding": layout["rounding"]["Rounding"],
        "widths": widths,
        "ranges": old.content(held["ranges"]),
        "weights": old.content(held["weights"]),
        "relative": old.content(held["relative"]),
    }


def of_budget(old: Objects, budget: Plain) -> Plain:
    """Return the state of a memory budget."""
    chosen = []
    for pair in budget["_chosen"]:
        of_record, of_demand = (old.content(each) for each in pair["tuple"])
        demand = {
            "family": old.content(of_demand["family"])["name"],
            "cost": of_demand["cost"],
            "negative": old.content(of_demand["negative"]),
            "positive": old.content(of_demand["positive"]),
        }
        chosen.append(record(old, of_record) | {"demand": demand})
    return {
        "limit": budget["limit"],
        "measuring": budget["measuring"],
        "other_bytes": budget["other_bytes"],
        "fixed": budget["_fixed"],
        "scale": budget["_scale"],
        "settled": budget["_settled"],
        "coded": sorted(each for each in old.content(budget["_coded"])),
        "chosen": chosen,
    }
