"""What the planner makes of noise that goes on to layers below, and of gradients that are small beside others."""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import Framework, Model, numbers

from actnn.model.wrapper import session_of
from actnn.session.site import Site

STEPS = 10
CLASSES = 5


def trained(framework: Framework, model: Model, shape: tuple[int, ...], **options: object) -> Model:
    """Return a converted model after some steps, in which its planner learnt what noise costs."""
    converted = framework.actnn.QModule(framework.initialised(model, 0), level="L3", **options)
    for step in range(STEPS):
        targets = np.random.default_rng(step).integers(0, CLASSES, shape[0])
        framework.cross_entropy(converted(framework.tensor(numbers(shape, step))), targets).backward()
        # a forward plans from the backward before it
    converted(framework.tensor(numbers(shape, STEPS)))
    return converted


def coding(model: Model) -> list[Site]:
    return [site for site in session_of(model).sites if site.account.elements]


def mean_of_tokens(model: Model, x):
    return model.head(model.body(x).mean(1))


def transformer(framework: Framework) -> Model:
    """Return the branch of a transformer that has a norm, maps and a smooth function."""
    layer = framework.layer
    body = framework.sequential(
        layer("Linear", 32, 64),
        layer("LayerNorm", 64),
        layer("Linear", 64, 128),
        layer("GELU"),
        layer("Linear", 128, 64),
    )
    return framework.wired(mean_of_tokens, body=body, head=layer("Linear", 64, CLASSES))


def smooth_head(model: Model, x):
    return model.head(model.body(x).mean((2, 3)))


def test_codes_of_batch_norms_that_smooth_functions_read_are_not_starved(framework: Framework):
    layer = framework.layer
    body = framework.sequential(
        *(layer("Conv2d", 3, 16, 3, padding=1), layer("BatchNorm2d", 16), layer("SiLU")),
        *(layer("Conv2d", 16, 16, 3, padding=1), layer("BatchNorm2d", 16), layer("SiLU")),
    )
    model = trained(
        framework, framework.wired(smooth_head, body=body, head=layer("Linear", 16, CLASSES)), (8, 3, 16, 16)
    )
    norms = [site for site in coding(model) if site.kind.startswith("QBatchNorm")]
    assert len(norms) == 2
    for site in norms:
        assert site.share is not None
        family, planes = site.share
        assert planes >= family.least_bits + 1


def test_all_codes_of_a_transformer_share_one_budget(framework: Framework):
    model = trained(framework, transformer(framework), (8, 16, 32))
    sites = coding(model)
    assert {site.kind for site in sites} >= {"QLinear", "QLayerNorm", "QGELU"}
    assert all(site.share is not None for site in sites)
    asked = sum(site.bits * site.account.elements for site in sites)
    planes = sum(site.account.planes for site in sites)
    assert planes == pytest.approx(asked, rel=0.02)


def test_a_transformer_fits_into_a_memory_budget(framework: Framework):
    report = trained(framework, transformer(framework), (8, 16, 32)).report()
    limit = int(0.8 * (report.kept_bytes + report.other_bytes))
    within = trained(framework, transformer(framework), (8, 16, 32), memory=limit).report()
    assert within.kept_bytes + within.other_bytes <= limit


def two_branches(model: Model, x):
    first, second = (branch(x.mean(1)) for branch in (model.first, model.second))
    return first + 1e-3 * second


def test_a_small_gradient_is_not_drowned_for_the_sake_of_a_large_one(framework: Framework):
    layer = framework.layer
    branches = {
        name: framework.sequential(layer("Linear", 32, 64), layer("ReLU"), layer("Linear", 64, CLASSES))
        for name in ("first", "second")
    }
    model = trained(framework, framework.wired(two_branches, **branches), (64, 4, 32), bits=4)
    large, small = (next(site for site in coding(model) if site.name == f"{name}.1") for name in branches)
    assert large.share is not None
    assert small.share is not None
    # for the variance of the sum alone, one would have the least width and the other four bits more
    assert abs(large.share[1] - small.share[1]) <= 2


def first_token(model: Model, x):
    return model.head(model.body(x)[:, 0])


def test_a_gradient_that_a_single_token_has_is_seen(framework: Framework):
    # a sample has so many groups that not all of an image's would be looked at
    body, head = framework.layer("Linear", 32, 64), framework.layer("Linear", 64, CLASSES)
    model = trained(framework, framework.wired(first_token, body=body, head=head), (4, 512, 32))
    (reader,) = (site for site in coding(model) if site.name == "body")
    assert reader.gradient is not None
    assert reader.gradient > 0


def test_what_batches_agree_about_is_told_from_how_they_differ(framework: Framework):
    layer = framework.layer
    body = framework.sequential(layer("Conv2d", 3, 8, 3, padding=1), layer("BatchNorm2d", 8), layer("ReLU"))
    model = framework.wired(smooth_head, body=body, head=layer("Linear", 8, CLASSES))
    converted = framework.actnn.QModule(framework.initialised(model, 0), level="L3")

    def sampling(labels: list[int]) -> dict[str, float | None]:
        for step in range(2):
            found = converted(framework.tensor(numbers((8, 3, 16, 16), step)))
            framework.cross_entropy(found, np.array(labels)).backward()
        converted(framework.tensor(numbers((8, 3, 16, 16), 2)))
        return {site.kind: site.sampling for site in session_of(converted).sites}

    # one class: all pull the head's weights one way
    of_head = next(name for name in sampling([0] * 8) if name.startswith("QLinear"))
    alike = sampling([0] * 8)[of_head]
    for site in session_of(converted).sites:
        site.sampling = None
    apart = sampling([0, 1, 2, 3, 4, 0, 1, 2])
    assert alike is not None
    assert alike < 0.2 * (apart[of_head] or 0.0)
