"""Dropout.

Keeps: one bit an element, which of them stay. Shares: nothing. Reads in backward: that mask. Noise: none.
"""

from __future__ import annotations

from actnn.kernels.contract import Array
from actnn.operations.kept import Kept, encode_mask
from actnn.session.site import Site
from actnn.session.tensors import Tensors


def keep_chosen(tensors: Tensors, chosen: Array, site: Site, exact_bytes: int) -> Kept:
    """Return the mask of what stays, ``chosen`` being positive there; exact training would keep ``exact_bytes``."""
    kept = encode_mask(tensors, chosen, site)
    site.keeps(0, exact_bytes)
    return kept
