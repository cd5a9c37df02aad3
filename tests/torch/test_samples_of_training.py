"""Samples that are known by their position in the training set get bits by the gradients they had before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from adaptive_networks import (
    CLASSES,
    averages,
    check_equal_gradients,
    gradients,
    pictures,
    plain_network,
    train,
    widths_of,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch_layers import compressed

import actnn

BATCH = 8
POSITIONS = [30, 2, 17, 5, 11, 3, 8, 21]


@pytest.fixture(autouse=True)
def no_batch_is_left_behind():
    """Let no test leave a batch in the settings."""
    yield
    actnn.QScheme.batch = actnn.QScheme.num_samples = None


def alike(seed: int = 0) -> Tensor:
    """Return inputs of equal range."""
    return torch.randn(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def run(prepare=lambda model: None, steps: int = 4, **settings: object) -> list[Tensor]:
    """Train for some steps on samples of different range; return the last gradients."""
    model = compressed(plain_network(), 2, level="L3", **settings)
    for number in range(steps):
        prepare(model)
        train(model, pictures(seed=number))
    return gradients(model)


def weighted(model: nn.Module, x: Tensor, weights: Tensor) -> None:
    """Take a step in which the samples' losses have weights."""
    model.zero_grad()
    (F.cross_entropy(model(x), torch.arange(len(x)) % CLASSES, reduction="none") * weights).sum().backward()


HARD = torch.tensor([1.0, 0.0] * 4)


def trained_on_hard_samples(level: str = "L3", **settings: object) -> actnn.QModule:
    """Return a model for which every other sample had large gradients for some steps."""
    model = compressed(plain_network(), 2, level=level, **settings)
    for number in range(4):
        model.set_samples(POSITIONS)
        weighted(model, alike(number), 0.01 + HARD)
    return model


def advantage(model: actnn.QModule) -> float:
    """Return how many bits the hard samples of a batch have more than the others, on average over layers."""
    hard = HARD.bool().numpy()
    found = [np.array(widths) for widths in widths_of(model, alike(9)).values()]
    return float(np.mean([widths[hard].mean() - widths[~hard].mean() for widths in found]))


FORMS = {
    "tuple": tuple,
    "numpy": np.array,
    "numpy of 32 bits": lambda positions: np.array(positions, np.int32),
    "tensor": torch.tensor,
    "tensor of 32 bits": lambda positions: torch.tensor(positions, dtype=torch.int32),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_positions_may_be_given_in_any_form(form):
    found = run(lambda model: model.set_samples(form(POSITIONS)))
    check_equal_gradients(found, run(lambda model: model.set_samples(POSITIONS)))


def test_positions_of_the_data_loader_are_accepted():
    dataset = torch.utils.data.TensorDataset(alike())
    model = compressed(plain_network(), 2, level="L3")
    for indices, (x,) in actnn.DataLoader(dataset, batch_size=4, shuffle=True):
        model.set_samples(indices)
        train(model, x)


BAD = {
    "negative": [-1],
    "floats": [0.5],
    "a number": 3,
    "two axes": [[1, 2]],
    "rows of different lengths": [[1], [1, 2]],
    "names": ["a"],
    "a tensor of floats": torch.tensor([1.0]),
    "a tensor of bfloat16": torch.tensor([1.0], dtype=torch.bfloat16),
    "a tensor of booleans": torch.tensor([True]),
    "a tensor of no axes": torch.tensor(3),
    "larger than any training set": [2**40],
}


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
def test_what_is_no_row_of_positions_is_refused(given):
    model = compressed(plain_network(), 2, level="L3")
    with pytest.raises(actnn.ConfigError, match="training set"):
        model.set_samples(given)


def test_refused_positions_leave_those_before_them():
    model = compressed(plain_network(), 2, level="L3")
    model.set_samples(POSITIONS)
    with pytest.raises(actnn.ConfigError):
        model.set_samples([-1])
    assert model._samples.tolist() == POSITIONS


@pytest.mark.parametrize("positions", [[0], [0, 1, 2], list(range(100))], ids=len)
def test_positions_that_fit_no_layer_are_ignored(positions):
    check_equal_gradients(run(lambda model: model.set_samples(positions)), run())


@pytest.mark.parametrize("level", ["L2.5", "L3"])
def test_hard_samples_get_more_bits_than_easy_ones(level: str):
    assert advantage(trained_on_hard_samples(level)) > 1


def test_hard_samples_keep_the_average():
    model = trained_on_hard_samples()
    assert averages(model, [BATCH] * 2) == pytest.approx([2] * 2, rel=0.01)


def test_samples_are_known_wherever_they_lie_in_a_batch():
    model = trained_on_hard_samples()
    model.set_samples(POSITIONS[1:] + POSITIONS[:1])
    assert advantage(model) < -1


def test_samples_that_were_never_seen_are_average_ones():
    model = trained_on_hard_samples()
    model.set_samples(range(100, 100 + BATCH))
    assert abs(advantage(model)) < 0.5


def test_none_switches_it_off():
    model = trained_on_hard_samples()
    model.set_samples(None)
    assert abs(advantage(model)) < 0.5


def test_samples_become_easy_again():
    model = trained_on_hard_samples()
    before = advantage(model)
    for number in range(6):
        weighted(model, alike(number), torch.ones(BATCH))
    assert advantage(model) < 0.5 * before


def test_positions_matter_only_where_widths_are_planned():
    def run(positions) -> list[Tensor]:
        model = compressed(plain_network(), 2, level="L2")
        model.set_samples(positions)
        averages(model, [BATCH] * 3)
        return gradients(model)

    check_equal_gradients(run(POSITIONS), run(None))


def tell_scheme(_: nn.Module) -> None:
    """Tell the samples of the next batch as the original's scripts do."""
    actnn.QScheme.num_samples, actnn.QScheme.batch = 100, torch.tensor(POSITIONS)


def test_the_originals_scheme_does_the_same():
    found = run(tell_scheme, use_gradient=True)
    check_equal_gradients(found, run(lambda model: model.set_samples(POSITIONS)))


def test_the_originals_two_schemes_are_one():
    assert actnn.QBNScheme is actnn.QScheme


def test_the_originals_scheme_is_ignored_without_use_gradient():
    found = run(tell_scheme)
    actnn.QScheme.batch = None
    check_equal_gradients(found, run())


def test_a_bad_scheme_is_ignored_without_use_gradient():
    actnn.QScheme.batch = "nonsense"
    run(steps=1)


def test_samples_that_a_model_was_told_come_before_the_originals_scheme():
    def both(model: actnn.QModule) -> None:
        tell_scheme(model)
        actnn.QScheme.batch = list(reversed(POSITIONS))
        model.set_samples(POSITIONS)

    check_equal_gradients(run(both, use_gradient=True), run(lambda model: model.set_samples(POSITIONS)))


def test_a_position_beyond_num_samples_is_refused():
    model = compressed(plain_network(), 2, level="L3", use_gradient=True)
    actnn.QScheme.num_samples, actnn.QScheme.batch = 30, POSITIONS
    with pytest.raises(actnn.ConfigError, match="0 to 29"):
        model(alike())


def test_without_num_samples_every_position_is_accepted():
    actnn.QScheme.batch = POSITIONS
    run(steps=1, use_gradient=True)
