"""A site: one place of a model that keeps activations, with its widths and its byte account."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actnn.core.session import Session


@dataclass
class Account:
    """What one site kept during one step: calls, and bytes with exact training and with codes."""

    calls: int = 0
    exact_bytes: int = 0
    kept_bytes: int = 0


@dataclass(eq=False)
class Site:
    """One layer of one session. ``group`` chooses its entry in ``activation_compression_bits``."""

    session: Session = field(repr=False)
    name: str
    kind: str
    index: int
    group: int = 0
    encoded: int = 0
    step: int = 0
    account: Account = field(default_factory=Account)

    @property
    def bits(self) -> int:
        """Width of this site's codes."""
        return self.session.policy.bits_of(self.group)

    def next_call(self) -> int:
        """Number the codes of this site, so that each has a key of its own."""
        self.encoded += 1
        return self.encoded

    def record(self, exact_bytes: int, kept_bytes: int) -> None:
        """Add to the account of the current step."""
        step = self.session.current_step()
        if self.step != step:
            self.step, self.account = step, Account()
        self.account.calls += 1
        self.account.exact_bytes += exact_bytes
        self.account.kept_bytes += kept_bytes
        self.session.log_kept(self, exact_bytes, kept_bytes)
