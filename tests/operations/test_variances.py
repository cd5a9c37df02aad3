"""The variance that the steps of a code tell is the one that decoding has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hand_made_sessions import session_of

from actnn.format import AFFINE, COMPANDED, NORMALIZED, ROOT, TWO_SIDED, Family
from actnn.operations.kept import encode
from actnn.operations.variances import mean_variance, variance
from actnn.torch.tensors import ARRAYS

REPEATS = 400
SHAPE = (3, 5, 90)


def drawn(family: Family, level: str = "L2", samples: range | None = None, **settings):
    """Return decoded values, their variances and the mean of these over many codes of the same values."""
    site = session_of(4, level, **settings).site("values", "values")
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)).abs()
    x[:, 2] *= 0.1
    found = []
    for _ in range(REPEATS):
        kept = encode(ARRAYS, x, ARRAYS.form(x), site, family)
        values = kept.reading.value(site, kept.tensors, "float32", samples)
        own = variance(kept.reading, kept.tensors[0], values, samples)
        found.append((values, own, mean_variance(kept.reading, kept.tensors[0], values, samples)))
    return found


# what is true to first order only has a factor of its own
@pytest.mark.parametrize(
    ("family", "allowed"),
    [(AFFINE, 0.0), (ROOT, 0.0), (COMPANDED, 0.03), (NORMALIZED, 0.03)],
    ids=lambda x: str(x)[:20],
)
@pytest.mark.parametrize("level", ["L2", "L2.5"])
@pytest.mark.parametrize("samples", [None, range(1, 3)])
def test_steps_tell_the_variance_of_decoded_values(family, allowed, level, samples):
    values, told, means = zip(*drawn(family, level, samples), strict=True)
    measured = torch.stack(values).double().var(0)
    assert measured.shape == (3 if samples is None else 2, *SHAPE[1:])
    relative = (torch.stack(told).double().mean(0) / measured).log()
    # a variance from 400 draws of uniform noise is off by 1 / sqrt(400 · 1.25), on average over 450 values by far less
    assert abs(relative.mean()) < 0.01 + allowed
    assert relative.abs().max() < 0.35
    assert np.mean(means) == pytest.approx(float(torch.stack(told).mean()), rel=0.2 if family is AFFINE else 1e-4)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("family", [COMPANDED, NORMALIZED], ids=lambda family: family.name)
def test_no_variance_is_negative_where_steps_are_wide(family, bits):
    site = session_of(bits, "L2").site("values", "values")
    x = torch.from_numpy(np.random.default_rng(1).standard_t(3, SHAPE).astype(np.float32))
    kept = encode(ARRAYS, x, ARRAYS.form(x), site, family)
    told = variance(kept.reading, kept.tensors[0], kept.reading.value(site, kept.tensors, "float32"))
    assert (told >= 0).all()
    assert (told > 0).any()


def test_codes_whose_steps_do_not_tell_have_no_variance():
    for family, settings in ((TWO_SIDED, {}), (AFFINE, {"rounding": "nearest"})):
        _, own, mean = drawn(family, **settings)[0]
        assert own is None
        assert mean is None
