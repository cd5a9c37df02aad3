"""Any function without a rule of its own: whatever floats autograd saves for it become codes of many bits.

Keeps: a code of ``other_bits`` of each activation that is saved, once for all who save it; nothing else changes.
Shares: a code of the same tensor, where that is as fine. Reads in backward: values, whatever the function does to them.
Costs: noise of the finest codes there are. Where a gradient is not linear in what was saved it has a bias of the second
order in their steps, which at 8 bits cannot be measured; functions whose gradient divides by what they saved, or takes
its exponential, stay exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from actnn.kernels.contract import Array
from actnn.operations.kept import Kept, reading_of, uncounted
from actnn.session import families
from actnn.session.plans import code_plan
from actnn.session.session import Session
from actnn.session.site import Readers, Site
from actnn.session.tensors import Tensors

# smaller ones stay: statistics of rows, logarithms of sums, scales
LEAST_BYTES = 1 << 14
# what stands behind the name of a function where its saved tensors have a row of their own
SAVED = ".saved"

QUOTIENTS = (
    "div",
    "divide",
    "true_divide",
    "truediv",
    "rtruediv",
    "reciprocal",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
)
ROOTS = ("rsqrt", "acos", "asin", "acosh", "atanh", "atan2", "logit", "erfinv", "xlogy", "prod", "cumprod", "cdist")
EXPONENTIALS = ("logsumexp", "logcumsumexp", "logaddexp", "ctc_loss", "scaled_dot_product_attention")
MATRICES = (
    "inverse",
    "inv",
    "solve",
    "cholesky",
    "svd",
    "qr",
    "eigh",
    "det",
    "logdet",
    "slogdet",
    "pinv",
    "matrix_norm",
)
NORMS = ("batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm", "norm", "vector_norm")
WHOLE = ("multi_head_attention_forward", "binary_cross_entropy", "nll_loss", "poisson_nll_loss", "gaussian_nll_loss")
# a little noise in what they saved may change their gradient by much
SENSITIVE = frozenset((*QUOTIENTS, *ROOTS, *EXPONENTIALS, *MATRICES, *NORMS, *WHOLE))
POWERS = ("pow", "float_power", "rpow")


class Coded(NamedTuple):
    """A code in the place of a tensor that autograd was to save."""

    kept: Kept
    site: Site
    dtype: str

    def value(self) -> Array:
        """Return the tensor."""
        reading, site = self.kept.reading, self.site
        site.session.backward_begins()
        return reading.value(site, reading.fetched(site, self.kept.tensors), self.dtype)


def sensitive(function: str, arguments: tuple[Any, ...]) -> bool:
    """Tell whether a function, by its name and what it was called with, is to keep what it saves."""
    name = function.strip("_")
    if name in POWERS:
        exponent = arguments[1] if len(arguments) > 1 else None
        return not (isinstance(exponent, (int, float)) and exponent >= 1)
    return name in SENSITIVE


def keep_other(tensors: Tensors, x: Array, session: Session, name: str, function: str) -> Coded | None:
    """Return a code of a tensor that a function without a rule saves; None where that is to stay as it is."""
    if tensors.nbytes(x) < LEAST_BYTES:
        return None
    form, dtype = tensors.form(x), tensors.dtype(x)
    tag = session.tags.current(tensors, x, form)
    site = other_site(session, f"{name}/{function}{SAVED}", function)
    exact_bytes = uncounted(tensors, x, tag)
    if tag.kept is not None and tag.owner is not None and tag.owner.bits >= site.bits and session.policy.share_codes:
        if tag.owner is not site:
            tag.owner.read_by(site, exact_bytes)
        if tag.readers is not None:
            tag.readers.values = True
        return Coded(tag.kept, site, dtype)
    plan = code_plan(tensors, site, x, form, families.of_values(session.policy))
    if not plan.smaller:
        tag.counted = exact_bytes == 0
        return None
    buffer = plan.encode_fixed(tensors, x)
    plan.account(plan.layout, 0, exact_bytes)
    kept = Kept(reading_of(plan, plan.layout, None), (site.store(tensors, buffer),))
    if session.policy.share_codes and tag.kept is None:
        # also of what no operation made: a constant that every layer saves
        tag.kept, tag.owner, tag.readers, tag.bypass = kept, site, Readers(), None
    return Coded(kept, site, dtype)


def other_site(session: Session, name: str, function: str) -> Site:
    """Return the site of a function without a rule; its width is that of the settings, whatever is planned."""
    site, bits = session.call_site(name, function), session.policy.other_bits
    if bits is not None and not site.fixed:
        site.fix(bits)
    return site


def tensors_in(nest: Any, kind: type[Any]) -> Iterator[Array]:
    """Yield the tensors of a nest of tuples, lists and dictionaries."""
    if isinstance(nest, kind):
        yield nest
    elif isinstance(nest, (tuple, list, Mapping)):
        for value in nest.values() if isinstance(nest, Mapping) else nest:
            yield from tensors_in(value, kind)
