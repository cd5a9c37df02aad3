"""Models by name: own ones have the shapes they should, and a wrong name is answered with help."""

from __future__ import annotations

import sys

import pytest

from actnn.console import extras
from actnn.errors import ConfigError, UnsupportedError
from actnn.workloads import models, resnets
from actnn.workloads.batch import Batch
from actnn.workloads.checkpointing import checkpointed

torch = pytest.importorskip("torch")

PARAMETERS = {"resnet18": 11_689_512, "resnet50": 25_557_032, "resnet152": 60_192_808, "wide_resnet50_2": 68_883_240}


def parameters(name, **options):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in models.build(name, **options).parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_own_resnets_have_the_published_number_of_parameters(name):
    assert parameters(name) == PARAMETERS[name]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_own_resnets_compute_what_torchvision_computes(name):
    try:
        from torchvision import models as other
    except (ImportError, RuntimeError) as problem:
        pytest.skip(f"torchvision does not import here: {problem}")
    torch.manual_seed(0)
    ours, theirs = models.build(name).eval(), getattr(other, name)().eval()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours(images), theirs(images))


def test_the_scaled_resnet_is_resnet152_at_its_own_depth_and_width():
    assert parameters("resnet-152") == parameters("wide-resnet-64") == PARAMETERS["resnet152"]
    assert resnets.deep(196).blocks == (3, 16, 72, 3)
    assert parameters("wide-resnet-128") > 2 * PARAMETERS["resnet152"] / 1.1


@pytest.mark.parametrize("name", ["resnet-109", "wide-resnet-0", "resnet-" + "9" * 20, "wide-resnet-10001"])
def test_a_scale_that_does_not_exist_is_refused(name):
    with pytest.raises(ConfigError, match="expected at least"):
        models.build(name)


@pytest.mark.parametrize("name", ["small_resnet", "resnet18"])
def test_classes_and_channels_are_chosen(name):
    model = models.build(name, classes=7, channels=2)
    assert model(torch.randn(2, 2, 32, 32)).shape == (2, 7)


def test_the_segmentation_network_gives_a_logit_for_every_pixel_and_class():
    with torch.device("meta"):
        model = models.build("fcn_hrnet_w48", classes=19)
        assert model(torch.randn(2, 3, 64, 128)).shape == (2, 19, 64, 128)
    assert parameters("fcn_hrnet_w48", classes=19) == pytest.approx(65.8e6, rel=0.01)


def test_a_name_of_timm_is_found():
    pytest.importorskip("timm")
    model = models.build("resnet10t", classes=5, channels=1)
    assert model(torch.randn(2, 1, 64, 64)).shape == (2, 5)


def test_a_name_of_torchvision_is_found_and_takes_other_channels():
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as problem:
        pytest.skip(f"torchvision does not import here: {problem}")
    with torch.device("meta"):
        assert models.build("squeezenet1_1", classes=5, channels=1)(torch.randn(2, 1, 64, 64)).shape == (2, 5)


def test_a_model_of_a_named_package_takes_its_own_options():
    pytest.importorskip("timm")
    model = models.build("timm:vit_tiny_patch16_224:img_size=32,depth=2,class_token=False,global_pool=avg", classes=5)
    assert (len(model.blocks), model.patch_embed.img_size, model.cls_token) == (2, (32, 32), None)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("timm:resnet10", "did you mean 'timm:resnet"),
        ("timm:resnet10t:depth", "an option 'depth': expected option=value"),
        ("timm:resnet10t:no_such_option=3", "cannot be made by timm: TypeError"),
        ("gpt2:layers=1", "a language model, which learns from texts"),
    ],
)
def test_a_model_of_a_package_that_does_not_exist_so_is_refused(name, complaint):
    pytest.importorskip("timm")
    with pytest.raises(ConfigError, match=complaint):
        models.build(name)


def test_a_named_package_that_is_not_installed_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(UnsupportedError, match=r"'timm:resnet10t' needs more .* pip install 'actnn\[models\]'"):
        models.build("timm:resnet10t")


def test_a_function_of_the_users_gets_what_it_names(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "def plain(): return nn.Linear(3, 4)\n"
        "def chosen(classes): return nn.Linear(3, classes)\n"
        "def wrong(): return 5\n"
        "number = 5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert models.build("own_models:plain").out_features == 4
    assert models.build("own_models:chosen", classes=7).out_features == 7
    for name, words in (
        ("own_models:wrong", "made a int"),
        ("own_models:number", "is a int"),
        ("own_models:absent", "absent"),
        ("absent_module:plain", "absent_module"),
    ):
        with pytest.raises(ConfigError, match=words):
            models.build(name)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("def model(): raise KeyError('depth')", "cannot be made from classes and channels alone: KeyError: 'depth'"),
        ("def model(): raise ValueError('first\\nsecond')", "ValueError: first$"),
        ("def model(): raise SystemExit(3)", "SystemExit: 3"),
        ("def model(classes, depth): pass", "TypeError: .* missing 1 required positional argument: 'depth'"),
        ("model = type", "cannot be made"),
        ("def model(:", r"cannot be loaded as module:function: SyntaxError: .*spoilt\.py, line 1"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit", "SystemExit: no message"),
    ],
)
def test_a_function_of_the_users_that_fails_gives_one_line(source, complaint, tmp_path, monkeypatch):
    (tmp_path / "spoilt.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "spoilt", raising=False)
    with pytest.raises(ConfigError, match=complaint) as refused:
        models.build("spoilt:model")
    assert "\n" not in str(refused.value)


def test_an_unknown_name_is_answered_with_close_ones(monkeypatch):
    monkeypatch.setattr(models, "PACKAGES", {})
    with pytest.raises(ConfigError, match="did you mean 'resnet50'"):
        models.build("resnt50")


def test_a_package_that_does_not_import_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'actnn\[models\]'"):
        models.build("mobilenet_v2")


def test_a_model_without_blocks_cannot_be_checkpointed():
    with pytest.raises(UnsupportedError, match="cannot be cut"):
        checkpointed(torch.nn.Linear(2, 2))


def test_a_model_of_fewer_classes_than_labels_says_how_to_make_it_of_more():
    batch = Batch((torch.randn(4, 3),), {}, torch.tensor([0, 9, 1, 2]))
    with pytest.raises(ConfigError, match=r"the model tells 5 classes apart.*an argument named classes"):
        batch.loss(torch.nn.Linear(3, 5)(*batch.given))
