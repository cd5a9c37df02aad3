"""Levels: what each sets, and that none leaves anything behind for the next."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

import actnn
from actnn.errors import ConfigError
from actnn.settings import KNOBS, Config

LEVELS = ["L0", "L1", "L2", "L2.5", "L3", "L3.1", "L4", "L5", "swap"]


def at(*levels: str) -> dict:
    """Return all settings after these levels were chosen one after another."""
    config = Config()
    for level in levels:
        config.set_optimization_level(level)
    return {name: getattr(config, name) for name in KNOBS}


def test_l0_does_not_compress():
    assert Config().policy("L0").compress is False


def test_l1_keeps_batch_norm_exact():
    policy = Config().policy("L1")
    assert (policy.compress, policy.compress_batch_norm, policy.bits) == (True, False, (4,))


def test_l2_codes_everything_at_four_bits():
    policy = Config().policy("L2")
    assert (policy.compress, policy.compress_batch_norm, policy.bits) == (True, True, (4,))


def test_l2_decides_no_width_while_training():
    assert Config().policy("L2").adaptive is False


def test_l2_5_decides_between_samples_at_two_bits():
    policy = Config().policy("L2.5")
    assert (policy.adaptive_maps, policy.adaptive_batch_norm, policy.per_layer) == (True, True, False)
    assert policy.bits == (2,)


def test_l3_decides_between_samples_and_layers_at_two_bits():
    policy = Config().policy("L3")
    assert (policy.adaptive_maps, policy.adaptive_batch_norm, policy.per_layer) == (True, True, True)
    assert policy.bits == (2,)


def test_l4_is_l3_with_codes_on_disk():
    assert Config().policy("L4") == replace(Config().policy("L3"), swap=True)


def test_l3_1_is_l3_with_large_layers_in_pieces_and_caches_trimmed():
    pieces = {"pipeline_threshold": 3 * 2**30, "cudnn_benchmark": False, "trim_threshold": 0.2}
    assert Config().policy("L3.1") == replace(Config().policy("L3"), **pieces)


def test_l5_is_l4_without_holes_in_memory():
    assert Config().policy("L5") == replace(Config().policy("L4"), arena=True, trim_threshold=0.2)


def test_the_level_swap_is_l0_with_activations_on_disk():
    assert Config().policy("swap") == replace(Config().policy("L0"), swap=True)


def test_a_level_of_one_conversion_keeps_what_is_said_of_the_machine(tmp_path):
    config, folder = Config(), str(tmp_path)
    config.swap_dir, config.swap_bytes, config.activation_compression_bits = folder, 2**20, [7]
    policy = config.policy("L4")
    assert (policy.swap_dir, policy.swap_bytes, policy.bits) == (folder, 2**20, (2,))


# defect 9: levels do not reset each other
@pytest.mark.parametrize("order", list(permutations(LEVELS, 3)), ids="-".join)
def test_levels_reset_each_other_in_any_order(order):
    assert at(*order) == at(order[-1])


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_undoes_what_was_set_by_hand(level):
    config = Config()
    config.activation_compression_bits = [7]
    config.enable_quantized_bn = False
    config.compress_activation = False
    config.stochastic = False
    config.set_optimization_level(level)
    assert {name: getattr(config, name) for name in KNOBS} == at(level)


def test_a_setting_after_a_level_holds():
    config = Config()
    config.set_optimization_level("L2")
    config.activation_compression_bits = [8]
    assert config.policy().bits == (8,)


@pytest.mark.parametrize("level", ["L6", "l2", "", "2", None, 2, ["L2"]], ids=repr)
def test_an_unknown_level_is_refused(level):
    with pytest.raises(ConfigError, match="no level"):
        Config().set_optimization_level(level)


def test_a_refused_level_changes_nothing():
    config = Config()
    config.activation_compression_bits = [7]
    with pytest.raises(ConfigError):
        config.set_optimization_level("L9")
    assert config.activation_compression_bits == [7]


def test_the_level_of_one_conversion_leaves_the_settings_alone():
    actnn.config.activation_compression_bits = [7]
    actnn.config.policy("L1")
    assert actnn.config.activation_compression_bits == [7]


def test_the_public_function_sets_the_public_settings():
    actnn.set_optimization_level("L1")
    assert actnn.config.enable_quantized_bn is False
