"""Settings: every knob of the original exists, with its default, and a bad value is refused with a reason."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import actnn
from actnn.amounts import AVERAGES
from actnn.errors import ConfigError
from actnn.format import Rounding
from actnn.settings import KNOBS, Config

DEFAULTS = {
    "compress_activation": True,
    "activation_compression_bits": [2, 8, 8],
    "pergroup": True,
    "perlayer": True,
    "initial_bits": 8,
    "stochastic": True,
    "group_size": 256,
    "use_gradient": False,
    "adaptive_conv_scheme": True,
    "adaptive_bn_scheme": True,
    "simulate": False,
    "enable_quantized_bn": True,
    "swap": False,
    "empty_cache_threshold": None,
    "pipeline_threshold": None,
    "cudnn_benchmark_conv2d": True,
    "debug_memory_model": False,
    "debug_speed": False,
}

# what cannot take effect in this version must say so
REFUSED = {
    "pergroup": False,
    "initial_bits": 4,
    "group_size": 128,
    "simulate": True,
}

BAD_BITS = [
    0,
    9,
    [0],
    [9],
    [-1],
    [0.5],
    [8.5],
    ["x"],
    "x",
    [],
    [True],
    None,
    [2, None],
    4,
    [float("nan")],
    [float("inf")],
]


@pytest.fixture
def config():
    """Settings of this test's own."""
    return Config()


def fixed(config: Config, **values) -> Config:
    """Return settings at level L2 with a few of them changed."""
    config.set_optimization_level("L2")
    for name, value in values.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize(("name", "default"), DEFAULTS.items())
def test_every_knob_of_the_original_has_its_default(config, name, default):
    assert getattr(config, name) == default


@pytest.mark.parametrize(("name", "default"), DEFAULTS.items())
def test_every_default_can_be_set_explicitly(config, name, default):
    setattr(config, name, default)
    assert getattr(config, name) == default


@pytest.mark.parametrize(("name", "value"), REFUSED.items())
def test_a_setting_that_cannot_take_effect_is_refused(config, name, value):
    with pytest.raises(ConfigError, match=f"config.{name} = .*expected"):
        setattr(config, name, value)


@pytest.mark.parametrize(("name", "value"), REFUSED.items())
def test_a_refused_setting_keeps_its_value(config, name, value):
    with pytest.raises(ConfigError):
        setattr(config, name, value)
    assert getattr(config, name) == DEFAULTS[name]


@pytest.mark.parametrize("name", [name for name, default in DEFAULTS.items() if isinstance(default, bool)])
def test_a_flag_is_true_or_false(config, name):
    with pytest.raises(ConfigError):
        setattr(config, name, "yes")


@pytest.mark.parametrize("bits", BAD_BITS, ids=repr)
def test_bits_that_are_no_widths_are_refused(config, bits):
    with pytest.raises(ConfigError, match="activation_compression_bits"):
        config.activation_compression_bits = bits


@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width_from_one_to_eight_reaches_the_policy(config, bits):
    assert fixed(config, activation_compression_bits=[bits]).policy().bits == (bits,)


def test_a_list_of_bits_that_was_changed_in_place_is_checked_at_conversion(config):
    fixed(config).activation_compression_bits[0] = 9
    with pytest.raises(ConfigError, match="9 bits"):
        config.policy()


def test_the_bits_of_one_conversion_are_not_changed_by_a_later_setting(config):
    policy = fixed(config, activation_compression_bits=[2]).policy()
    config.activation_compression_bits = [8]
    assert policy.bits == (2,)


def test_a_layer_group_chooses_its_width(config):
    policy = fixed(config, activation_compression_bits=[2, 5, 8]).policy()
    assert [policy.bits_of(group) for group in range(3)] == [2, 5, 8]


@pytest.mark.parametrize("group", [-1, 1, 7])
def test_a_layer_group_without_a_width_is_refused(config, group):
    with pytest.raises(ConfigError, match=f"group={group}"):
        fixed(config, activation_compression_bits=[2]).policy().bits_of(group)


def test_an_unknown_setting_is_refused_with_the_nearest_name(config):
    with pytest.raises(ConfigError, match="Did you mean 'activation_compression_bits'"):
        config.activation_compresion_bits = [2]


def test_a_setting_like_no_other_is_refused_with_all_names(config):
    with pytest.raises(ConfigError, match="compress_activation, activation_compression_bits"):
        config.zzz = 1


def test_reading_an_unknown_setting_is_an_attribute_error(config):
    with pytest.raises(AttributeError):
        _ = config.zzz


def test_reset_restores_every_default(config):
    fixed(config, activation_compression_bits=[7], enable_quantized_bn=False, stochastic=False)
    config.reset()
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS


def test_a_default_list_is_not_shared_between_resets(config):
    config.activation_compression_bits.append(3)
    config.reset()
    assert config.activation_compression_bits == [2, 8, 8]


@pytest.mark.parametrize("rounding", Rounding, ids=lambda rounding: rounding.name.lower())
def test_the_rounding_reaches_the_policy(config, rounding):
    assert fixed(config, rounding=rounding.name.lower()).policy().rounding is rounding


def test_without_stochastic_values_are_rounded_to_nearest(config):
    assert fixed(config, stochastic=False).policy().rounding is Rounding.NEAREST


@pytest.mark.parametrize("rounding", ["up", None, 3, []], ids=repr)
def test_an_unknown_rounding_is_refused(config, rounding):
    with pytest.raises(ConfigError, match="rounding"):
        config.rounding = rounding


def test_untouched_settings_decide_widths_while_training(config):
    policy = config.policy()
    assert (policy.adaptive, policy.per_layer, policy.bits) == (True, True, (2, 8, 8))


def test_a_fractional_average_reaches_an_adaptive_policy(config):
    config.activation_compression_bits = [1.25]
    assert config.policy().bits == (1.25,)


def test_a_fractional_average_of_fixed_widths_is_refused_at_conversion(config):
    fixed(config, activation_compression_bits=[1.5])
    with pytest.raises(ConfigError, match=r"fractional average.*'L2\.5' or 'L3'"):
        config.policy()


@pytest.mark.parametrize("threshold", [0, -1, 1.5, True, "1GB"], ids=repr)
def test_a_threshold_that_is_no_number_of_bytes_is_refused(config, threshold):
    with pytest.raises(ConfigError, match="pipeline_threshold"):
        config.pipeline_threshold = threshold


@pytest.mark.parametrize("value", [-0.1, 1, 2, "0.2", True])
def test_a_share_to_trim_that_is_none_is_refused(config, value):
    with pytest.raises(ConfigError, match="empty_cache_threshold"):
        config.empty_cache_threshold = value


@pytest.mark.parametrize(("name", "value"), [("swap_dir", 3), ("swap_bytes", "1GB"), ("swap_bytes", 0)])
def test_a_place_for_swapping_that_is_none_is_refused(config, name, value):
    with pytest.raises(ConfigError, match=name):
        setattr(config, name, value)


def test_the_printed_settings_name_every_knob(config):
    assert all(f"{name}=" in repr(config) for name in KNOBS)


@pytest.mark.parametrize(("variable", "name"), [("DEBUG_MEM", "debug_memory_model"), ("DEBUG_SPEED", "debug_speed")])
@pytest.mark.parametrize(("value", "expected"), [("1", "True"), ("true", "True"), ("0", "False"), ("", "False")])
def test_the_environment_switches_debugging_on(variable, name, value, expected):
    program = f"import actnn; print(actnn.config.{name})"
    environment = {**os.environ, variable: value}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_a_config_error_is_also_a_value_error():
    assert issubclass(ConfigError, ValueError)


def test_every_error_has_one_base():
    names = ["ConfigError", "FormatError", "SessionError", "ShapeError", "UnsupportedError"]
    assert all(issubclass(getattr(actnn, name), actnn.ActnnError) for name in names)


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="QConv4d"):
        _ = actnn.QConv4d


@pytest.mark.parametrize(("name", "width"), AVERAGES.items())
def test_an_average_goes_by_its_name_wherever_a_number_does(name: str, width: float):
    chosen = Config()
    chosen.activation_compression_bits = [name]
    assert chosen.policy().bits == (width,)
    assert Config().policy("L3", bits=name).bits == Config().policy("L3", bits=width).bits == (width,)


def test_a_name_of_no_average_is_told():
    with pytest.raises(ConfigError, match=r"'leaner' is not a width: expected one of .*'lean'"):
        Config().policy("L3", bits="leaner")


def test_bits_serve_every_group_of_the_settings():
    assert Config().policy(bits=3).bits == (3.0, 3.0, 3.0)
