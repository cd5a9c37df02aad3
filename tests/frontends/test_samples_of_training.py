"""Samples that are known by their position in the training set get bits by the gradients they had before."""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import Array, Framework, Model, numbers
from planned_networks import CLASSES, averages, pictures, plain_network, train, widths_of
from steps import check_equal_gradients

import actnn

BATCH = 8
POSITIONS = [30, 2, 17, 5, 11, 3, 8, 21]


@pytest.fixture(autouse=True)
def no_batch_is_left_behind():
    """Let no test leave a batch in the settings."""
    yield
    actnn.QScheme.batch = actnn.QScheme.num_samples = None


def alike(seed: int = 0) -> Array:
    """Return inputs of equal range."""
    return numbers((BATCH, 3, 16, 16), 200 + seed)


def planned(framework: Framework, level: str = "L3", **settings: object) -> Model:
    return framework.compressed(plain_network(framework), 2, level=level, **settings)


def run(framework: Framework, prepare=lambda model: None, steps: int = 4, **settings: object) -> dict[str, Array]:
    """Train for some steps on samples of different range; return the last gradients."""
    model = planned(framework, **settings)
    for number in range(steps):
        prepare(model)
        train(framework, model, pictures(seed=number))
    return framework.gradients(model)


def told(model: Model) -> None:
    model.set_samples(POSITIONS)


def weighted(framework: Framework, model: Model, x: Array, weights: Array) -> None:
    """Take a step in which the samples' losses have weights."""
    framework.clear(model)
    losses = framework.cross_entropy(model(framework.tensor(x)), np.arange(len(x)) % CLASSES, "none")
    (losses.reshape([-1]) * framework.tensor(weights.astype(np.float32))).sum().backward()


HARD = np.array([1.0, 0.0] * 4)


def trained_on_hard_samples(framework: Framework, level: str = "L3") -> Model:
    """Return a model for which every other sample had large gradients for some steps."""
    model = planned(framework, level)
    for number in range(4):
        model.set_samples(POSITIONS)
        weighted(framework, model, alike(number), 0.01 + HARD)
    return model


def advantage(framework: Framework, model: Model) -> float:
    """Return how many bits the hard samples of a batch have more than the others, on average over layers."""
    hard = HARD.astype(bool)
    found = [np.array(widths) for widths in widths_of(framework, model, alike(9)).values()]
    return float(np.mean([widths[hard].mean() - widths[~hard].mean() for widths in found]))


FORMS = {
    "tuple": lambda _, positions: tuple(positions),
    "numpy": lambda _, positions: np.array(positions),
    "numpy of 32 bits": lambda _, positions: np.array(positions, np.int32),
    "tensor": lambda framework, positions: framework.tensor(np.array(positions)),
    "tensor of 32 bits": lambda framework, positions: framework.tensor(np.array(positions, np.int32)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_positions_may_be_given_in_any_form(framework: Framework, form):
    found = run(framework, lambda model: model.set_samples(form(framework, POSITIONS)))
    check_equal_gradients(found, run(framework, told))


BAD = {
    "negative": lambda _: [-1],
    "floats": lambda _: [0.5],
    "a number": lambda _: 3,
    "two axes": lambda _: [[1, 2]],
    "rows of different lengths": lambda _: [[1], [1, 2]],
    "names": lambda _: ["a"],
    "a tensor of floats": lambda framework: framework.tensor(np.array([1.0], np.float32)),
    "a tensor of bfloat16": lambda framework: framework.cast(framework.tensor(np.array([1.0], np.float32)), "bfloat16"),
    "a tensor of booleans": lambda framework: framework.tensor(np.array([True])),
    "a tensor of no axes": lambda framework: framework.tensor(np.array(3)),
    "larger than any training set": lambda _: [2**40],
}


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
def test_what_is_no_row_of_positions_is_refused(framework: Framework, given):
    model = planned(framework)
    with pytest.raises(actnn.ConfigError, match="training set"):
        model.set_samples(given(framework))


def test_refused_positions_leave_those_before_them(framework: Framework):
    model = planned(framework)
    model.set_samples(POSITIONS)
    with pytest.raises(actnn.ConfigError):
        model.set_samples([-1])
    assert model._steps.samples.tolist() == POSITIONS


@pytest.mark.parametrize("positions", [[0], [0, 1, 2], list(range(100))], ids=len)
def test_positions_that_fit_no_layer_are_ignored(framework: Framework, positions):
    check_equal_gradients(run(framework, lambda model: model.set_samples(positions)), run(framework))


@pytest.mark.parametrize("level", ["L2.5", "L3"])
def test_hard_samples_get_more_bits_than_easy_ones(framework: Framework, level: str):
    assert advantage(framework, trained_on_hard_samples(framework, level)) > 1


def test_hard_samples_keep_the_average(framework: Framework):
    model = trained_on_hard_samples(framework)
    assert averages(framework, model, [BATCH] * 2) == pytest.approx([2] * 2, rel=0.01)


def test_samples_are_known_wherever_they_lie_in_a_batch(framework: Framework):
    model = trained_on_hard_samples(framework)
    model.set_samples(POSITIONS[1:] + POSITIONS[:1])
    assert advantage(framework, model) < -1


@pytest.mark.parametrize("positions", [range(100, 100 + BATCH), None], ids=["never seen", "not told"])
def test_samples_that_are_not_known_are_average_ones(framework: Framework, positions):
    model = trained_on_hard_samples(framework)
    model.set_samples(positions)
    assert abs(advantage(framework, model)) < 0.5


def test_samples_become_easy_again(framework: Framework):
    model = trained_on_hard_samples(framework)
    before = advantage(framework, model)
    for number in range(6):
        weighted(framework, model, alike(number), np.ones(BATCH))
    assert advantage(framework, model) < 0.5 * before


def test_positions_matter_only_where_widths_are_planned(framework: Framework):
    found = []
    for positions in (POSITIONS, None):
        model = planned(framework, "L2")
        model.set_samples(positions)
        averages(framework, model, [BATCH] * 3)
        found.append(framework.gradients(model))
    check_equal_gradients(*found)


def tell_scheme(framework: Framework):
    """Return a call that tells the samples of the next batch as the original's scripts do."""

    def tell(_: Model) -> None:
        actnn.QScheme.num_samples, actnn.QScheme.batch = 100, framework.tensor(np.array(POSITIONS))

    return tell


def test_the_originals_scheme_does_the_same(framework: Framework):
    found = run(framework, tell_scheme(framework), use_gradient=True)
    check_equal_gradients(found, run(framework, told))


def test_the_originals_two_schemes_are_one():
    assert actnn.QBNScheme is actnn.QScheme


def test_the_originals_scheme_is_ignored_without_use_gradient(framework: Framework):
    found = run(framework, tell_scheme(framework))
    actnn.QScheme.batch = None
    check_equal_gradients(found, run(framework))


def test_a_bad_scheme_is_ignored_without_use_gradient(framework: Framework):
    actnn.QScheme.batch = "nonsense"
    found = run(framework)
    actnn.QScheme.batch = None
    check_equal_gradients(found, run(framework))


def test_samples_that_a_model_was_told_come_before_the_originals_scheme(framework: Framework):
    def both(model: Model) -> None:
        tell_scheme(framework)(model)
        actnn.QScheme.batch = list(reversed(POSITIONS))
        model.set_samples(POSITIONS)

    check_equal_gradients(run(framework, both, use_gradient=True), run(framework, told))


def test_a_position_beyond_num_samples_is_refused(framework: Framework):
    model = planned(framework, use_gradient=True)
    actnn.QScheme.num_samples, actnn.QScheme.batch = 30, POSITIONS
    with pytest.raises(actnn.ConfigError, match="0 to 29"):
        model(framework.tensor(alike()))


def test_without_num_samples_every_position_is_accepted(framework: Framework):
    actnn.QScheme.batch = POSITIONS
    found = run(framework, use_gradient=True)
    check_equal_gradients(found, run(framework, told))
