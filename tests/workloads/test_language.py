"""Language models by configuration: their options, their texts, and steps of all contestants."""

from __future__ import annotations

import math

import pytest

from actnn.console import extras
from actnn.errors import ConfigError, UnsupportedError
from actnn.workloads import language, options
from actnn.workloads.frameworks import trainee
from actnn.workloads.task import Task, words_of

torch = pytest.importorskip("torch")
SMALL = "layers=2,width=32,tokens=16,vocabulary=64"
PARAMETERS = {"gpt2": 124_439_808, "bert": 109_514_298}


@pytest.fixture(autouse=True)
def transformers():
    pytest.importorskip("transformers")


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_without_options_has_the_size_of_the_published_one(name):
    published = {"gpt2": 1024, "bert": 512}[name]
    with torch.device("meta"):
        model = language.find(f"{name}:tokens={published}").build()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("family", language.FAMILIES)
def test_options_set_the_shape(family):
    found = language.find(f"{family}:{SMALL},heads=4,dropout=0.1,attention=eager")
    configuration = found.build().config
    assert (configuration.num_hidden_layers, configuration.hidden_size, configuration.num_attention_heads) == (2, 32, 4)
    assert (configuration.vocab_size, configuration.max_position_embeddings) == (64, 16)
    assert 0.1 in configuration.to_dict().values()
    assert found.batch(3).named["input_ids"].shape == (3, 16)


@pytest.mark.parametrize("family", language.FAMILIES)
def test_nothing_is_dropped_unless_asked_for(family):
    torch.manual_seed(0)
    found = language.find(f"{family}:{SMALL}")
    model, batch = found.build().train(), found.batch(2)
    assert torch.equal(batch.outputs(model).logits, batch.outputs(model).logits)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("depth=3", "no option 'depth': expected one of layers, width"),
        ("layers=0", "layers=0: expected a whole number of at least 1"),
        ("width=wide", "width=wide: expected a whole number"),
        ("dropout=1", "from 0 to below 1"),
        ("attention=flash", "expected sdpa or eager"),
        ("layers", "expected option=value"),
        ("width=10,heads=3", "3 heads on a width of 10"),
    ],
)
def test_an_option_that_cannot_be_is_refused(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        language.find(f"gpt2:{given}").build()


def test_frequent_tokens_come_in_inverse_proportion_to_their_rank():
    torch.manual_seed(0)
    texts = language.find("gpt2:tokens=1000,vocabulary=1000").batch(200).named["input_ids"]
    counts = torch.bincount(texts.flatten(), minlength=1000)
    assert texts.min() == 0
    assert texts.max() == 999
    assert float(counts[0] / counts[9]) == pytest.approx(math.log(2) / math.log(1.1), rel=0.1)


def test_a_masked_model_predicts_what_it_does_not_see():
    torch.manual_seed(0)
    inputs = language.find("bert:tokens=64,vocabulary=50").batch(8).named
    asked = inputs["labels"] != language.NO_LABEL
    assert 0.1 < asked.float().mean() < 0.25
    assert inputs["input_ids"][asked].eq(49).all()


@pytest.mark.parametrize("contestant", ["exact", "checkpoint", "L3"])
@pytest.mark.parametrize("family", language.FAMILIES)
def test_every_contestant_learns(family, contestant):
    task = Task(f"{family}:{SMALL}", 4, 224, 224, rate=0.1)
    trained = trainee(task, contestant)
    losses = [trained.step() for _ in range(8)]
    assert losses[-1] < losses[0] - 0.2
    assert trained.kept()["kept_bytes"] > 0


def test_a_run_tells_tokens_instead_of_pixels():
    run = Task(f"gpt2:{SMALL}", 4, 224, 224).run_of("L3")
    assert (run["model"], run["size"]) == (f"gpt2:{SMALL}", "16 tokens")
    assert words_of(run) == f"gpt2:{SMALL}, 4 texts of 16 tokens, L3"


def test_images_are_refused():
    with pytest.raises(ConfigError, match="learns from texts"):
        trainee(Task(f"gpt2:{SMALL}", 2, 224, 224), "exact").take(torch.zeros(1).numpy(), torch.zeros(1).numpy())


def test_a_missing_package_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(UnsupportedError, match=r"'llama' needs more packages .* pip install 'actnn\[models\]'"):
        language.find("llama").build()


@pytest.mark.parametrize("name", ["gpt", "resnet50", "mymodels:gpt2", "timm:gpt2"])
def test_another_name_is_no_language_model(name):
    assert language.find(name) is None


def test_options_stay_with_their_model_in_a_list():
    text = "resnet18,gpt2:layers=4,width=64,bert,timm:vit:depth=2,img_size=32,bert"
    assert options.names(text) == ["resnet18", "gpt2:layers=4,width=64", "bert", "timm:vit:depth=2,img_size=32"]
