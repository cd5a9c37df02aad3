"""The headline of the report: what autograd keeps of the whole model, against a plain count by saved-tensor hooks."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import actnn

NEAR = 0.03


def counted(model: nn.Module, call: Callable[[], Any]) -> int:
    """Return the bytes of all memory that autograd saves in a call, counted without any code of actnn's."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own:
            found[memory.data_ptr()] = memory.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
    del result
    return sum(found.values())


def torchvision_model(name: str, **options: Any) -> nn.Module:
    return getattr(pytest.importorskip("torchvision").models, name)(weights=None, **options)


def timm_model(name: str) -> nn.Module:
    return pytest.importorskip("timm").create_model(name, pretrained=False)


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=256, n_positions=64, use_cache=False)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    name: (build, lambda: ((torch.randn(2, 3, 64, 64),), {}))
    for name, build in {
        "googlenet": lambda: torchvision_model("googlenet", aux_logits=False, init_weights=False),
        "efficientnet_b0": lambda: torchvision_model("efficientnet_b0"),
        "regnetx_002": lambda: timm_model("regnetx_002"),
        "swin_t": lambda: torchvision_model("swin_t"),
        "mobilenet_v2": lambda: torchvision_model("mobilenet_v2"),
    }.items()
} | {"gpt2": (gpt2, lambda: ((), {"input_ids": torch.randint(0, 256, (2, 32)), "use_cache": False}))}


def output(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result.logits


@pytest.mark.parametrize("name", MODELS)
def test_the_headline_is_what_a_plain_count_finds(name: str):
    torch.manual_seed(0)
    build, make = MODELS[name]
    plain, (arguments, options) = build().train(), make()
    exact = counted(plain, lambda: plain(*arguments, **options))
    ours = actnn.QModule(deepcopy(plain))
    for _ in range(4):
        output(ours(*arguments, **options)).square().mean().backward()
    kept = counted(ours, lambda: ours(*arguments, **options))
    whole = ours.report().whole
    assert not whole.estimated
    assert whole.exact_bytes == pytest.approx(exact, rel=NEAR)
    assert whole.kept_bytes == pytest.approx(kept, rel=NEAR)
    assert ours.report().ratio == pytest.approx(exact / kept, rel=2 * NEAR)
    assert whole.coded_bytes + sum(whole.parts.values()) == whole.kept_bytes


class Mixed(nn.Module):
    """What is served, what has no rule, and what is to stay exact."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.odd = nn.ModuleList(nn.Softsign() for _ in range(5))
        self.noise = nn.Dropout(0.1)
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x))
        for odd in self.odd:
            x = odd(x)
        return self.last(self.norm(self.noise(x)).exp())


def trained(model: nn.Module, steps: int = 3, batch: int = 256) -> Any:
    for _ in range(steps):
        model(torch.randn(batch, 64)).square().mean().backward()
    return model


def test_what_is_not_compressed_is_named_with_the_reason_and_folded():
    text = str(trained(actnn.QModule(Mixed())).report())
    assert text.splitlines()[0].startswith("autograd keeps ")
    assert "5 Softsign: softsign (there is no rule for softsign)" in text
    assert "model (Mixed): exp (there is no rule for exp)" in text


def test_weights_that_were_computed_are_no_codes():
    plain = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    nn.utils.parametrizations.weight_norm(plain[0])
    whole = trained(actnn.QModule(plain)).report().whole
    (part,) = [part for part in whole.parts if "weights that were computed" in part.reason]
    assert part.layer == "0"
    assert whole.parts[part] == plain[0].weight.nbytes
    assert whole.coded_bytes < whole.parts[part]


def test_what_the_user_wants_exact_is_named_as_such():
    parts = trained(actnn.QModule(Mixed(), exact=["first"])).report().whole.parts
    assert {part.reason for part in parts if part.layer == "first"} == {"exact asks for it (first)"}


def test_asking_for_a_report_changes_nothing():
    torch.manual_seed(0)
    ours = trained(actnn.QModule(Mixed(), level="L3"))
    ours.zero_grad()
    twin = deepcopy(ours)
    x = torch.randn(256, 64)
    state = torch.get_rng_state()
    for _ in range(2):
        loss = ours(x).square().mean()
        ours.report()
        loss.backward()
    torch.set_rng_state(state)
    for _ in range(2):
        twin(x).square().mean().backward()
    for (name, found), expected in zip(ours.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad), name
    for found, expected in zip(ours.buffers(), twin.buffers(), strict=True):
        assert torch.equal(found, expected)


def test_the_exact_forward_keeps_nothing():
    seen: list[int] = []

    class Watching(Mixed):
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            seen.append(counted(self, lambda: None))
            return result

    ours = trained(actnn.QModule(Watching()))
    calls = len(seen)
    ours.report()
    ours.report()
    assert len(seen) == calls + 1


def test_a_model_of_functions_alone_is_compressed_before_its_first_step_too():
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(x @ self.weight)

    ours = actnn.QModule(Functional())
    assert "run a training step" in str(ours.report())
    assert "model/gelu" in str(trained(ours).report())


def test_a_batch_of_another_size_is_expected_to_keep_in_proportion():
    ours = trained(actnn.QModule(Mixed()), steps=5)
    before = ours.report().whole
    whole = trained(ours, steps=1, batch=128).report().whole
    assert whole.estimated
    assert whole.kept_bytes == pytest.approx(before.kept_bytes / 2, rel=0.1)


def test_hooks_that_others_put_in_place_stay_in_force():
    ours = actnn.QModule(Mixed())
    seen = []
    with saved_tensors_hooks(lambda tensor: seen.append(1) or tensor, lambda tensor: tensor):
        ours(torch.randn(256, 64)).sum().backward()
    assert seen
    with save_on_cpu():
        ours(torch.randn(256, 64)).sum().backward()
    assert ours.report().whole is None


def test_a_model_that_is_computed_anew_keeps_its_input_only():
    ours = actnn.QModule(Mixed())
    x = torch.randn(256, 64, requires_grad=True)
    for _ in range(3):
        checkpoint(ours, x, use_reentrant=False).sum().backward()
    assert ours.report().whole is None


class Anew(nn.Module):
    """Computes its parts anew in backward, and takes its input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(3))

    def forward(self, *, x: Tensor) -> Tensor:
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False)
        return x


def test_a_model_that_trains_past_its_wrapper_is_held_against_what_its_plain_forward_keeps():
    """As one of Hugging Face's that its Trainer computes anew: codes of what is computed anew are no saving."""
    plain = Anew()
    exact = counted(plain, lambda: plain(x=torch.randn(256, 64)))
    ours = actnn.QModule(plain)
    for _ in range(4):
        plain(x=torch.randn(256, 64)).square().mean().backward()
    whole = ours.report().whole
    assert not whole.estimated
    assert whole.exact_bytes == pytest.approx(exact, rel=NEAR)
    assert {part.reason for part in whole.parts} == {"checkpointing keeps it, to compute anew what follows"}


def test_what_a_call_was_given_that_cannot_be_made_again_leaves_an_estimate():
    class Odd(Mixed):
        def forward(self, x: Any) -> Tensor:
            return super().forward(x.value)

    class Held:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    ours = actnn.QModule(Odd())
    for _ in range(3):
        ours(Held(torch.randn(256, 64))).square().mean().backward()
    whole = ours.report().whole
    assert whole.estimated
    assert whole.exact_bytes > whole.kept_bytes


def test_only_some_steps_are_counted():
    from actnn.torch.counting import is_due

    assert [step for step in range(1, 40) if is_due(step)] == [1, 2, 3, 4, 8, 16, 32]
