"""L4 and L5 in every front end: gradients are those of L3 bit by bit, while codes lie on disk."""

from __future__ import annotations

import gc

import pytest
from frameworks import Array, Framework, Model, numbers
from patience import nothing_hangs, until  # noqa: F401
from planned_networks import NETWORKS, loss_of, pictures, ranges
from steps import check_equal_gradients

import actnn
from actnn.stores import store
from actnn.stores.disk import file
from actnn.stores.places import PAGE


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """Let next to nothing wait in memory, so that codes really go to disk and come back; and files stay small."""
    monkeypatch.setattr(store, "BUFFER_BYTES", 16 * 1024)
    monkeypatch.setattr(file, "GROWTH", 2**20)


@pytest.fixture(params=["L4", "L5"])
def level(request) -> str:
    """Codes in plain memory, and in slabs, before they are written and after they were read."""
    return request.param


def join(model: Model, x):
    return model.head(model.around(model.block, model.pool(model.stem(x))))


def direct(block: Model, x):
    return block(x)


def network(framework: Framework, around=direct, inplace: bool = False) -> Model:
    """Return layers of every kind that keeps codes, each code large enough to leave memory."""
    layer = framework.layer
    first, second = (layer("ReLU", inplace=inplace) for _ in range(2))
    convolution = layer("Conv2d", 16, 32, 3, padding=1, bias=False)
    parts = {
        "stem": framework.sequential(layer("Conv2d", 3, 16, 3, padding=1), layer("BatchNorm2d", 16), first),
        "pool": layer("MaxPool2d", 2),
        "block": framework.sequential(convolution, layer("BatchNorm2d", 32), second, layer("Dropout", 0.2)),
        "head": framework.sequential(layer("Flatten"), layer("Linear", 32 * 16 * 16, 6)),
        "around": around,
    }
    return framework.initialised(framework.wired(join, **parts))


def batch(number: int = 0, samples: int = 8) -> Array:
    """Return inputs whose samples differ in range."""
    return numbers((samples, 3, 32, 32), 300 + number) * ranges(samples)


def loss(framework: Framework, model: Model, x: Array):
    framework.seed(3)
    return model(framework.tensor(x)).square().mean()


def train(framework: Framework, model: Model, steps: int = 3) -> list[dict[str, Array]]:
    """Train on different batches; return the gradients of all steps."""
    advance, found = framework.optimizer(model, 0.01), []
    for number in range(steps):
        framework.clear(model)
        loss(framework, model, batch(number)).backward()
        found.append(framework.gradients(model))
        advance()
    return found


def check_same(found: list[dict[str, Array]], expected: list[dict[str, Array]]) -> None:
    """Raise unless all gradients of all steps are the same bit for bit."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours
        check_equal_gradients(ours, theirs)


def statistics(model: Model):
    return model._session.store.statistics()


def check_empty(model: Model) -> None:
    """Raise unless no code of a model is left, in its file or in memory."""
    gc.collect()
    until(lambda: statistics(model).file_bytes == statistics(model).memory_bytes == 0)
    assert statistics(model).unknown_releases == 0
    slabs = model._session.store.slabs
    assert (slabs is not None) == model._session.policy.arena
    if slabs is not None:
        until(lambda: slabs.statistics().taken_bytes == 0)


def check_like_l3(framework: Framework, plain: Model, level: str, **settings: object) -> None:
    """Raise unless training has the gradients of L3, from codes that came back from disk."""
    ours, theirs = (framework.compressed(plain, 2, level=each, **settings) for each in (level, "L3"))
    check_same(train(framework, ours), train(framework, theirs))
    assert statistics(ours).read_bytes > 0, "no code came back from disk"
    check_empty(ours)


@pytest.mark.parametrize("share_codes", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("inplace", [True, False], ids=["in place", "copied"])
def test_gradients_are_those_of_l3(framework: Framework, level, share_codes, inplace):
    check_like_l3(framework, network(framework, inplace=inplace), level, share_codes=share_codes)


def test_gradients_are_those_of_l3_in_pieces_of_the_batch(framework: Framework, level):
    check_like_l3(framework, network(framework), level, pipeline_threshold=100_000)


def test_gradients_are_those_of_l3_where_a_block_is_computed_anew(framework: Framework, level):
    check_like_l3(framework, network(framework, framework.checkpoint), level)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_other_networks_are_those_of_l3(framework: Framework, level, name, monkeypatch):
    monkeypatch.setattr(store, "LEAST_BYTES", 64)
    ours, theirs = (framework.compressed(NETWORKS[name](framework), 2, level=each) for each in (level, "L3"))
    for number in range(3):
        for model in (ours, theirs):
            framework.clear(model)
            loss_of(framework, model, pictures(8, number)).backward()
        check_equal_gradients(framework.gradients(ours), framework.gradients(theirs))
    assert statistics(ours).read_bytes > 0
    check_empty(ours)


@pytest.mark.parametrize("arena", [True, False], ids=["slabs", "plain memory"])
@pytest.mark.parametrize("level", ["L1", "L2", "L2.5"])
def test_codes_of_other_levels_can_be_swapped_too(framework: Framework, level, arena):
    swapping = {"swap": True, "arena": arena}, {"swap": False, "arena": False}
    ours, theirs = (framework.compressed(network(framework), 4, level=level, **each) for each in swapping)
    check_same(train(framework, ours), train(framework, theirs))
    assert statistics(ours).read_bytes > 0
    check_empty(ours)


def test_two_losses_may_go_backward_in_the_order_of_their_forwards(framework: Framework, level):
    ours, theirs = (framework.compressed(network(framework), 2, level=each) for each in (level, "L3"))
    for model in (ours, theirs):
        losses = [loss(framework, model, factor * batch()) for factor in (1, 2, 3)]
        for value in losses:
            value.backward()
        del losses, value
    check_equal_gradients(framework.gradients(ours), framework.gradients(theirs))
    assert statistics(ours).read_bytes > 0
    check_empty(ours)


def test_a_forward_without_its_backward_leaves_nothing(framework: Framework, level):
    ours = framework.compressed(network(framework), 2, level=level)
    value = loss(framework, ours, batch())
    until(lambda: statistics(ours).written_bytes > 0)
    del value
    check_empty(ours)


def kinds(framework: Framework, model: Model) -> list[type]:
    return [type(layer) for _, layer in framework.layers(model)]


def test_a_restored_model_is_plain_and_leaves_no_thread(framework: Framework, level):
    plain = network(framework)
    ours = framework.compressed(plain, 2, level=level)
    train(framework, ours, 1)
    thread = ours._session.store._store._engine._thread
    restored = ours.restore()
    thread.join(30)
    assert not thread.is_alive()
    assert kinds(framework, restored) == kinds(framework, plain)
    train(framework, restored, 1)


def test_the_report_tells_what_went_to_disk(framework: Framework, level):
    ours, theirs = (framework.compressed(network(framework), 2, level=each) for each in (level, "L3"))
    for model in (ours, theirs):
        train(framework, model, 2)
    assert 0 < ours.report().swapped_bytes <= ours.report().kept_bytes == theirs.report().kept_bytes
    assert "swapped out" in str(ours.report())
    assert theirs.report().swapped_bytes == 0
    assert "swapped" not in str(theirs.report())


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_directory_that_cannot_be_used_is_refused_and_the_model_left_as_it_was(
    framework: Framework, level, tmp_path, name
):
    (tmp_path / "file").touch()
    plain = network(framework)
    before = kinds(framework, plain)
    framework.prepare(2, level, swap_dir=str(tmp_path / name))
    with pytest.raises(actnn.ConfigError, match=name):
        framework.actnn.QModule(plain)
    assert kinds(framework, plain) == before
    train(framework, plain, 1)


def test_steps_need_no_more_of_the_disk(framework: Framework, level, monkeypatch):
    # a page at a time: the file is as long as what lay in it at once
    monkeypatch.setattr(file, "GROWTH", PAGE)
    ours, found = framework.compressed(network(framework), 2, level=level), []
    for _ in range(4):
        train(framework, ours, 3)
        check_empty(ours)
        found.append(statistics(ours).file_size)
    assert found[0] > 0
    # one buffer of the step before may still be in the hands of the thread when the next one begins
    assert found[-1] <= 2 * found[0]
    assert statistics(ours).written_bytes > 2 * found[-1]
