"""A site: one place of a model that keeps activations, with its widths, its readers and its byte account."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actnn.core.format import AFFINE, MAX_BITS, TWO_SIDED, Family

if TYPE_CHECKING:
    from actnn.core.session import Session


@dataclass
class Account:
    """What one site kept during one step: bytes with exact training and with codes, and who reads its codes."""

    exact_bytes: int = 0
    kept_bytes: int = 0
    readers: list[str] = field(default_factory=list)


@dataclass
class Readers:
    """Who read one code: a rectifier reads its sides, a map its values."""

    sides: bool = False
    values: bool = False


@dataclass(eq=False)
class Site:
    """One layer of one session. ``group`` chooses its entry in ``activation_compression_bits``.

    ``expected`` is what the readers of its codes were in the step before; at first all kinds are expected.
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

    @property
    def bits(self) -> int:
        """Average width of this site's codes."""
        return self.session.policy.bits_of(self.group)

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
        return self.session.policy.share_codes and not (family is TWO_SIDED and self.bits == MAX_BITS)

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

    def learn(self) -> None:
        """Expect from now on the readers that the last backward confirmed."""
        if self.seen is not None:
            self.expected, self.seen = self.seen, None

    def _account(self) -> Account:
        step = self.session.current_step()
        if self.step != step:
            self.step, self.account = step, Account()
        return self.account
