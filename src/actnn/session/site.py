"""A site: one place of a model that keeps activations, with its widths, its readers and its byte account."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actnn.format import AFFINE, MAX_BITS, TWO_SIDED, ZERO_EXACT, Family, Layout
from actnn.kernels.contract import Array, Arrays
from actnn.planning.noise import Transfer
from actnn.planning.samples import Floats

if TYPE_CHECKING:
    from actnn.session.session import Session


@dataclass
class Account:
    """What one site kept during one step: bytes with exact training and with codes, and who reads its codes.

    ``handed_bytes`` of those kept were to leave memory, and buffers of the sizes ``refused``, to which other threads
    add, did not. ``elements`` were coded in ``planes`` bits all together, of which ``signs`` are there for a mask's
    sake.
    """

    exact_bytes: int = 0
    kept_bytes: int = 0
    handed_bytes: int = 0
    refused: list[int] = field(default_factory=list)
    elements: int = 0
    planes: int = 0
    signs: float = 0.0
    readers: list[str] = field(default_factory=list)

    @property
    def swapped_bytes(self) -> int:
        """How many of the bytes kept are not in memory."""
        return self.handed_bytes - sum(self.refused)


@dataclass
class Readers:
    """Who read one code: a rectifier reads its sides, a map its values."""

    sides: bool = False
    values: bool = False


@dataclass(eq=False)
class Site:
    """One layer of one session. ``group`` chooses its entry in ``activation_compression_bits``.

    ``expected`` is what the readers of its codes were in the step before; at first all kinds are expected. What
    training tells of it is smoothed over steps: ``gradient``, the mean squared gradient norm that it reads codes with,
    and ``weights``, what noise in its own codes costs by the sides of their values. ``share`` is the family and the
    average width that it was given of the budget. ``transfer`` is how a map hands noise on to its weights, ``below``
    the map whose output a BatchNorm reads, and ``handed_down`` what noise in the BatchNorm costs it, found with the
    ``transfer`` that the BatchNorm then remembers.
    """

    session: Session = field(repr=False)
    name: str
    kind: str
    index: int
    group: int = 0
    encoded: int = 0
    step: int = 0
    account: Account = field(default_factory=Account)
    expected: Readers = field(default_factory=lambda: Readers(sides=True, values=True))
    seen: Readers | None = None
    gradient: float | None = None
    weights: Floats | None = None
    share: tuple[Family, float] | None = None
    transfer: Transfer | None = None
    below: Site | None = None
    handed_down: float | None = None
    batch_norm: bool = False

    @property
    def bits(self) -> float:
        """Average width that the settings give this site's codes."""
        return self.session.policy.bits_of(self.group)

    @property
    def adaptive(self) -> bool:
        """Whether the samples of its codes may differ in width."""
        policy = self.session.policy
        return policy.adaptive_batch_norm if self.batch_norm else policy.adaptive_maps

    def asked(self, family: Family) -> float:
        """Return the planes that the settings ask of a code of this family, on average."""
        return min(self.bits + signs(family, self.bits), MAX_BITS)

    def planes(self, family: Family) -> float:
        """Return the planes of its next code, on average: its share of the budget where it was given one."""
        if self.share is None:
            return self.asked(family)
        of, planes = self.share
        return min(max(planes + signs(family, self.bits) - signs(of, self.bits), family.least_bits), MAX_BITS)

    def family(self) -> Family:
        """Return how a BatchNorm codes its input: with sides where a rectifier is expected to read them."""
        return TWO_SIDED if self.expected.sides and self.shares(TWO_SIDED) else AFFINE

    def codes_output(self, family: Family) -> bool:
        """Tell whether an activation codes its output for the layers that read it, rather than its mask alone."""
        return self.expected.values and self.shares(family)

    def shares(self, family: Family) -> bool:
        """Tell whether a code of this family may serve several readers.

        The sides of a two-sided code take about one bit; at the largest width there is none to spare.
        """
        return self.session.policy.share_codes and not (family == TWO_SIDED and self.bits > MAX_BITS - 1)

    def next_call(self) -> int:
        """Number the codes of this site, so that each has a key of its own."""
        self.encoded += 1
        return self.encoded

    def keeps(self, kept_bytes: int, exact_bytes: int = 0) -> None:
        """Add to the account of the current step: what is kept, and what exact training would keep for it."""
        account = self._account()
        account.kept_bytes += kept_bytes
        account.exact_bytes += exact_bytes
        self.session.log_kept(self, kept_bytes, exact_bytes)

    def codes(self, layout: Layout) -> None:
        """Add a code to the account of the current step."""
        account = self._account()
        elements = layout.samples * layout.elements
        account.elements += elements
        widths = sum(layout.sample_bits) if layout.sample_bits is not None else layout.bits * layout.samples
        account.planes += widths * layout.elements
        account.signs += signs(layout.family, self.bits) * elements

    def store(self, arrays: Arrays, buffer: Array) -> Array:
        """Put a buffer where this session keeps its codes; return what autograd is to save in its place."""
        account = self._account()
        saved = self.session.store.put(arrays, buffer, account.refused.append)
        if saved is not buffer:
            account.handed_bytes += len(buffer)
        return saved

    def read_by(self, reader: Site, exact_bytes: int) -> None:
        """Note that another site reads this one's code instead of keeping ``exact_bytes`` of its own."""
        account = self._account()
        account.exact_bytes += exact_bytes
        if reader.name not in account.readers:
            account.readers.append(reader.name)

    def confirm(self, readers: Readers) -> None:
        """Note, in backward, who read one code of this step; the next forward may expect the same.

        Backward is the time for it: a recomputed forward must decide as the first one did.
        """
        seen = self.seen or Readers()
        self.seen = Readers(seen.sides or readers.sides, seen.values or readers.values)

    def learn(self) -> bool:
        """Expect from now on the readers that the last backward confirmed; tell whether that changes anything."""
        if self.seen is None:
            return False
        changed = self.expected != self.seen
        self.expected, self.seen = self.seen, None
        return changed

    def _account(self) -> Account:
        step = self.session.current_step()
        if self.step != step:
            self.step, self.account = step, Account()
        return self.account


def signs(family: Family, bits: float) -> float:
    """Return the part of a code's width that serves a ReLU's mask rather than values of ``bits`` bits.

    A two-sided code has one plane more than an affine one of the same fineness. A zero-exact code serves its mask
    without, but cannot do with less than its least width.
    """
    # by value: a copied or unpickled session has families of its own
    if family == TWO_SIDED:
        return 1.0
    return max(0.0, ZERO_EXACT.least_bits - bits) if family == ZERO_EXACT else 0.0
