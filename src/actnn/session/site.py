"""A site: one place of a model that keeps activations, with its plans, its readers and its byte account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actnn.format import MAX_BITS, Family
from actnn.kernels.contract import Array, Arrays
from actnn.planning.learnt import Learnt, signs
from actnn.session import families

if TYPE_CHECKING:
    from actnn.session.session import Session

# bits that a BatchNorm's code has more where a smooth function reads values and slopes from it
CURVED_EXTRA = 3.0
# forms of tensors whose plans a site remembers: where shapes never come again, plans would pile up
MOST_PLANS = 64


class Account:
    """What one site kept during one step: bytes with exact training and with codes, and who reads its codes.

    ``handed_bytes`` of those kept were to leave memory, and buffers of the sizes ``refused``, to which other threads
    add, did not. ``elements`` were coded in ``planes`` bits all together, of which ``signs`` are there for a mask's
    sake. Every site opens one in every step: what nobody added to is that of the class.
    """

    exact_bytes = 0
    kept_bytes = 0
    handed_bytes = 0
    refused: list[int] | None = None
    elements = 0
    planes = 0
    signs = 0.0
    readers: tuple[str, ...] = ()

    @property
    def swapped_bytes(self) -> int:
        """How many of the bytes kept are not in memory."""
        return self.handed_bytes - sum(self.refused or ())

    def state(self) -> dict[str, Any]:
        """Return the account as plain data."""
        numbers = ("exact_bytes", "kept_bytes", "handed_bytes", "elements", "planes", "signs")
        lists = {"refused": list(self.refused or ()), "readers": list(self.readers)}
        return {name: getattr(self, name) for name in numbers} | lists

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Account:
        """Return the account that plain data stand for."""
        account = cls()
        vars(account).update(state, refused=list(state["refused"]), readers=tuple(state["readers"]))
        return account


@dataclass(init=False)
class Readers:
    """Who read one code: a rectifier reads its sides, and may overwrite what was coded, a map reads its values.

    A smooth function reads values and slopes: its code is ``curved``. At first nobody has read it.
    """

    sides: bool = False
    values: bool = False
    # of no account for what is coded
    overwrites: bool = field(default=False, compare=False)
    curved: bool = False

    @classmethod
    def of(cls, **read: bool) -> Readers:
        """Return some that have read already."""
        readers = cls()
        vars(readers).update(read)
        return readers


class Site(Learnt):
    """One layer or call of one session. ``group`` chooses its entry in ``activation_compression_bits``.

    Its codes have ``extra`` bits more than that entry says, where noise in them costs more than in others.
    ``expected`` is what the readers of its codes were in the step before; at first all kinds are expected. ``plans``
    holds what was decided once for each form of tensor.
    """

    def __init__(
        self, session: Session, name: str, kind: str, index: int, group: int, batch_norm: bool, extra: float = 0.0
    ) -> None:
        policy = session.policy
        adaptive = policy.adaptive_batch_norm if batch_norm else policy.adaptive_maps
        # without codes no group needs a width
        bits = min(policy.bits_of(group) + extra, MAX_BITS) if policy.compress else 0.0
        # whether codes are to serve the gradients of what happens here
        self.compresses = policy.compress and (policy.compress_batch_norm or not batch_norm)
        super().__init__(name, index, group, bits, adaptive)
        self.session, self.kind, self.batch_norm, self.extra = session, kind, batch_norm, extra
        self._own_bits = bits
        # the identity of the parameter with which a function read its codes, where that is one
        self.parameter: int | None = None
        # whether its width is its own, and no matter of planning
        self.fixed = False
        self.encoded = 0
        self.step = 0
        self.account = Account()
        # nobody to overwrite anything: for whoever may, a BatchNorm's input would have to be held
        self.expected = Readers.of(sides=True, values=True)
        self.seen: Readers | None = None
        self._family: Family | None = None
        # the families of codes of any values, and of what a ReLU returns
        self.of_values, self.of_rectified = families.of_values(policy), families.of_rectified(policy)
        self.plans: dict[Any, Any] = {}

    def fix(self, bits: float) -> None:
        """Let codes of this site have so many bits, whatever is planned for others."""
        self.bits, self._own_bits, self.adaptive, self.fixed = bits, bits, False, True
        self.plans.clear()

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {self.kind!r})"

    @property
    def layer(self) -> str:
        """The path of the layer or module that this site belongs to: what ``exact`` takes."""
        return self.name.partition("/")[0]

    def remember(self, key: Any, plan: Any) -> Any:
        """Return a new plan, which ``plans`` holds from now on."""
        if len(self.plans) >= MOST_PLANS:
            self.plans.clear()
        self.plans[key] = plan
        return plan

    def family(self) -> Family:
        """Return how a BatchNorm codes its input: with sides where a rectifier is expected to read them."""
        if self._family is None:
            policy = self.session.policy
            sided = families.with_sides(policy)
            sides = self.expected.sides and self.shares(sided)
            self._family = sided if sides else families.of_normalized(policy)
        return self._family

    def codes_output(self, family: Family) -> bool:
        """Tell whether an activation codes its output for the layers that read it, rather than its mask alone."""
        return self.expected.values and self.shares(family)

    def shares(self, family: Family) -> bool:
        """Tell whether a code of this family may serve several readers.

        The sides of a two-sided code take about one bit; at the largest width there is none to spare.
        """
        return self.session.policy.share_codes and not (self.bits > MAX_BITS - 1 and signs(family, self.bits) == 1)

    def current_account(self) -> Account:
        """Return the account of the current step, a new one where this is its first entry."""
        session = self.session
        if session.backward_seen:
            session.next_step()
        if self.step != session.step:
            self.step, self.account = session.step, Account()
        return self.account

    def keeps(self, kept_bytes: int, exact_bytes: int = 0) -> None:
        """Add to the account of the current step: what is kept, and what exact training would keep for it."""
        account = self.current_account()
        account.kept_bytes += kept_bytes
        account.exact_bytes += exact_bytes
        if self.session.policy.log_memory:
            self.session.log_kept(self, kept_bytes, exact_bytes)

    def store(self, arrays: Arrays, buffer: Array) -> Array:
        """Put a buffer where this session keeps its codes; return what autograd is to save in its place."""
        store = self.session.store
        if store.keeps_in_place:
            return buffer
        account = self.current_account()
        if account.refused is None:
            account.refused = []
        saved = store.put(arrays, buffer, account.refused.append)
        if saved is not buffer:
            account.handed_bytes += len(buffer)
        return saved

    def read_by(self, reader: Site, exact_bytes: int) -> None:
        """Note that another site reads this one's code instead of keeping ``exact_bytes`` of its own."""
        account = self.current_account()
        account.exact_bytes += exact_bytes
        if reader.name not in account.readers:
            account.readers = (*account.readers, reader.name)

    def confirm(self, readers: Readers) -> None:
        """Note, in backward, who read one code of this step; the next forward may expect the same.

        Backward is the time for it: a recomputed forward must decide as the first one did.
        """
        seen = self.seen
        if seen is None:
            # a copy: who reads that code in a later step is another matter
            seen = self.seen = Readers()
            seen.sides, seen.values = readers.sides, readers.values
            seen.overwrites, seen.curved = readers.overwrites, readers.curved
        else:
            seen.sides, seen.values = seen.sides or readers.sides, seen.values or readers.values
            seen.overwrites = seen.overwrites or readers.overwrites
            seen.curved = seen.curved or readers.curved

    def learn(self) -> bool:
        """Expect from now on the readers that the last backward confirmed; tell whether that changes anything."""
        seen, expected = self.seen, self.expected
        self.seen = None
        if seen is None:
            return False
        if seen.sides == expected.sides and seen.values == expected.values and seen.curved == expected.curved:
            self.expected = seen
            return False
        self.expect(seen)
        return True

    def expect(self, readers: Readers) -> None:
        """Expect some readers from now on, and have the bits that they need."""
        if readers.curved != self.expected.curved and not self.fixed:
            self.bits = min(self._own_bits + (CURVED_EXTRA if readers.curved else 0.0), MAX_BITS)
            self.plans.clear()
        self.expected, self._family = readers, None

    def __getstate__(self) -> dict[str, Any]:
        # plans hold what belongs to this process
        return self.__dict__ | {"plans": {}}
