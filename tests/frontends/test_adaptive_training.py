"""Widths decided while training, in trainings that are not plain: overflows, odd batches, copies, checkpoints."""

from __future__ import annotations

import pickle
from copy import deepcopy

import numpy as np
import pytest
from frameworks import Framework, Model, numbers
from networks import residual_block
from planned_networks import (
    CLASSES,
    Widths,
    averages,
    check_all_finite,
    classifier,
    in_a_row,
    loss_of,
    pictures,
    plain_network,
    residual_network,
    train,
    unit,
    widths_of,
)
from steps import check_equal_gradients

import actnn
from actnn.planning.planner import RENEWED

BATCH = 8


def planned(framework: Framework, network: Model, bits: float = 2, level: str = "L3") -> Model:
    return framework.compressed(network, bits, level=level)


def statistics(model: Model) -> dict[str, object]:
    """Return what a model has learned of gradients, for comparison."""
    found: dict[str, object] = {"norms": model._session.planner.norms.of(np.arange(4 * BATCH)).tolist()}
    for site in model._session.sites:
        weights = None if site.weights is None else site.weights.tolist()
        found[site.name] = (site.gradient, weights, site.share)
    return found


def experienced(framework: Framework, network: Model, steps: int = 3) -> Model:
    """Return a model that has trained on the same samples for some steps, and has begun the next forward."""
    model = planned(framework, network)
    model.set_samples(range(BATCH))
    for number in range(steps):
        train(framework, model, pictures(seed=number))
    model(framework.tensor(pictures()))
    return model


@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_a_loss_that_is_not_finite_leaves_the_statistics_as_they_were(framework: Framework, factor: float):
    model = experienced(framework, plain_network(framework))
    before = statistics(model)
    (loss_of(framework, model, pictures(seed=7)) * factor).backward()
    model(framework.tensor(pictures()))
    assert statistics(model) == before


def test_training_goes_on_after_a_loss_that_is_not_finite(framework: Framework):
    model = experienced(framework, plain_network(framework))
    before = statistics(model)
    (loss_of(framework, model, pictures(seed=7)) * float("inf")).backward()
    assert train(framework, model, pictures(seed=8)).average_bits == pytest.approx(2, rel=0.01)
    check_all_finite(framework, model)
    model(framework.tensor(pictures()))
    assert statistics(model) != before


def test_a_batch_that_is_not_finite_does_not_stop_planning(framework: Framework):
    model, x = planned(framework, plain_network(framework)), pictures()
    x[3] = np.nan
    train(framework, model, x)
    for number in range(3):
        assert train(framework, model, pictures(seed=number)).average_bits == pytest.approx(2, rel=0.01)
    check_all_finite(framework, model)
    assert any(len(set(widths)) > 1 for widths in widths_of(framework, model, pictures()).values())


def regions(model: Model, x):
    features = model.body(x)
    crops = [features[:, :, place : place + 8, place : place + 8] for place in range(model.crops)]
    return model.head(model.concatenated(crops, 0)).reshape([model.crops, len(x), CLASSES]).mean(0)


def regional(framework: Framework) -> Model:
    """Return a body that sees the batch, and a head that sees several crops of each sample."""
    body = framework.sequential(*unit(framework, 3, 8), *unit(framework, 8, 8))
    head = framework.sequential(*unit(framework, 8, 8), *classifier(framework, 8))
    return framework.initialised(
        framework.wired(regions, body=body, head=head, crops=5, concatenated=framework.concatenated), 0
    )


@pytest.mark.parametrize("samples", [None, range(BATCH)])
def test_a_head_that_sees_a_multiple_of_the_batch_keeps_the_average(framework: Framework, samples):
    model = planned(framework, regional(framework))
    model.set_samples(samples)
    assert averages(framework, model, [BATCH] * 4) == pytest.approx([2] * 4, rel=0.01)


def test_a_head_may_see_another_number_of_regions_in_every_step(framework: Framework):
    model, found = planned(framework, regional(framework)), []
    for number, crops in enumerate((5, 1, 8, 3, 3)):
        model.crops = crops
        found.append(train(framework, model, pictures(seed=number)).average_bits)
    assert found == pytest.approx([2] * 5, rel=0.25)
    check_all_finite(framework, model)


def optionally(model: Model, x):
    x = model.first(x)
    for _ in range(model.times):
        x = model.middle(x)
    return model.last(x)


def optional(framework: Framework) -> Model:
    """Return a layer that is used, once or more often, or not, between two others."""
    first, middle = (framework.sequential(*unit(framework, inputs, 8)) for inputs in (3, 8))
    last = framework.sequential(*unit(framework, 8, 8), *classifier(framework, 8))
    return framework.initialised(framework.wired(optionally, first=first, middle=middle, last=last, times=1), 0)


def test_a_layer_that_comes_back_does_not_take_more_than_its_part(framework: Framework):
    model, found = planned(framework, optional(framework)), []
    for number, times in enumerate((1, 1, 0, 1, 0, 0, 1, 1)):
        model.times = times
        average = train(framework, model, pictures(seed=number)).average_bits
        found += [average] if times else []
    assert found == pytest.approx([2] * len(found), rel=0.01)


@pytest.mark.parametrize("bits", [1.5, 2])
def test_a_layer_that_is_used_several_times_keeps_the_average(framework: Framework, bits: float):
    model = planned(framework, optional(framework), bits)
    model.times = 3
    assert averages(framework, model, [BATCH] * 4) == pytest.approx([bits] * 4, rel=0.01)
    check_all_finite(framework, model)


@pytest.mark.parametrize("level", ["L2.5", "L3"])
def test_a_batch_of_one_trains(framework: Framework, level: str):
    model = planned(framework, plain_network(framework), level=level)
    assert averages(framework, model, [1] * 4) == pytest.approx([2] * 4, rel=0.01)
    check_all_finite(framework, model)


@pytest.mark.parametrize("frozen_first", [True, False])
def test_layers_may_be_frozen_half_way_or_learn_again(framework: Framework, frozen_first: bool):
    model = planned(framework, plain_network(framework))
    lower = [model[place] for place in range(6)]
    for frozen, steps in ((frozen_first, 3), (not frozen_first, 1)):
        for layer in lower:
            framework.freeze(layer, frozen)
        # shares of the step before hold once more: layers that are frozen now had a part of them
        averages(framework, model, [BATCH] * steps)
    assert averages(framework, model, [BATCH] * 2) == pytest.approx([2] * 2, rel=0.01)
    check_all_finite(framework, model)


def test_a_second_model_changes_nothing(framework: Framework):
    alone, first = (planned(framework, plain_network(framework)) for _ in range(2))
    second = planned(framework, residual_network(framework), 1.5)
    for number in range(4):
        train(framework, alone, pictures(seed=number))
        loss = loss_of(framework, first, pictures(seed=number))
        train(framework, second, pictures(5, number))
        framework.clear(first)
        loss.backward()
    check_equal_gradients(framework.gradients(first), framework.gradients(alone))


@pytest.mark.parametrize("network", [plain_network, residual_network])
def test_a_copy_made_while_training_goes_on_like_the_original(framework: Framework, network):
    model = planned(framework, network(framework))
    model.set_samples(range(BATCH))
    averages(framework, model, [BATCH] * 3)
    other = deepcopy(model)
    for number in range(3):
        for each in (model, other):
            train(framework, each, pictures(seed=number))
        check_equal_gradients(framework.gradients(other), framework.gradients(model))


def test_a_copy_does_not_teach_the_original(framework: Framework):
    model = experienced(framework, plain_network(framework))
    before = statistics(model)
    averages(framework, deepcopy(model), [BATCH] * 3)
    assert statistics(model) == before


def anew(model: Model, x):
    return model.last(model.checkpoint(model.block, model.stem(x)))


def checkpointed(framework: Framework) -> Model:
    """Return a residual block that is computed anew in backward, between layers that are not."""
    parts = {
        "stem": framework.sequential(*unit(framework, 3, 8)),
        "block": residual_block(framework, 8, 12),
        "last": framework.sequential(*unit(framework, 12, 8), *classifier(framework, 8)),
        "checkpoint": framework.checkpoint,
    }
    return framework.initialised(framework.wired(anew, **parts), 0)


@pytest.mark.parametrize("level", ["L2.5", "L3"])
def test_checkpointing_works_over_batches_of_all_sizes(framework: Framework, level: str):
    model = planned(framework, checkpointed(framework), 1.5, level)
    for number, batch in enumerate((8, 8, 3, 3, 8, 5, 1, 8)):
        train(framework, model, pictures(batch, number))
        check_all_finite(framework, model)


def test_checkpointing_gives_the_gradient_of_eight_bits(framework: Framework):
    network = checkpointed(framework)
    model = planned(framework, network, 8)
    for number in range(3):
        for each in (model, network):
            framework.clear(each)
            loss_of(framework, each, pictures(seed=number)).backward()
        found, expected = framework.gradients(model), framework.gradients(network)
        for name, exact in expected.items():
            assert np.linalg.norm(found[name] - exact) <= 0.03 * np.linalg.norm(exact) + 1e-4, name


def test_a_block_that_is_computed_anew_has_the_same_widths(framework: Framework):
    model = planned(framework, checkpointed(framework))
    model.checkpoint = framework.recording_checkpoint
    averages(framework, model, [BATCH] * 3)
    with Widths(model) as widths:
        train(framework, model, pictures())
    repeated = {name: codes for name, codes in widths.of.items() if name.startswith("block.") and len(codes) > 1}
    assert repeated
    assert all(codes[0] == codes[1] for codes in repeated.values())


def test_accumulated_gradients_keep_the_average(framework: Framework):
    model = planned(framework, plain_network(framework))
    for _ in range(3):
        framework.clear(model)
        for number in range(3):
            loss_of(framework, model, pictures(seed=number)).backward()
            assert model.report().average_bits == pytest.approx(2, rel=0.01)


def size_of(state: object) -> int:
    return len(pickle.dumps(state))


def test_forwards_without_backward_do_not_grow_a_model(framework: Framework):
    model = experienced(framework, plain_network(framework))
    for number in range(RENEWED):
        model(framework.tensor(pictures(seed=number % 3)))
    # maps were measured anew by now, and a BatchNorm remembers the measurement before until a backward
    before = size_of(model._session)
    for number in range(200):
        model(framework.tensor(pictures(seed=number % 3)))
    # counters of codes grow by a byte now and then
    assert size_of(model._session) <= before + 100


def test_steps_do_not_grow_a_model(framework: Framework):
    model = experienced(framework, plain_network(framework), steps=10)
    before = size_of(model._session)
    averages(framework, model, [BATCH] * 50)
    model(framework.tensor(pictures()))
    assert size_of(model._session) <= 1.1 * before


def test_evaluation_between_steps_changes_no_gradient(framework: Framework):
    found = []
    for evaluate in (True, False):
        model = planned(framework, plain_network(framework))
        for number in range(4):
            train(framework, model, pictures(seed=number))
            if evaluate:
                framework.evaluating(model)
                with framework.no_grad():
                    model(framework.tensor(pictures(5, 9)))
                framework.training(model)
        found.append(framework.gradients(model))
    check_equal_gradients(*found)


def test_a_layer_made_by_hand_does_not_remember_every_step(framework: Framework):
    actnn.set_optimization_level("L3")
    layer, sizes = framework.made_by_hand("Linear", 300, 10), []
    x = framework.tensor(numbers((4, 300)))
    for count in (100, 400):
        for _ in range(count):
            layer(x).sum().backward()
        sizes.append(size_of(layer.site.session))
    assert sizes[1] <= 1.1 * sizes[0]


def test_the_tokens_of_a_sequence_train(framework: Framework):
    layer = framework.layer
    network = in_a_row(
        framework, layer("Linear", 60, 32), layer("ReLU"), layer("Flatten"), layer("Linear", 160, CLASSES)
    )
    model = planned(framework, network)
    for number in range(3):
        assert train(framework, model, numbers((BATCH, 5, 60), number)).average_bits == pytest.approx(2, rel=0.05)
    check_all_finite(framework, model)
