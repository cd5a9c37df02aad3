"""Settings: `Config` is what users set, `Policy` the frozen result that one conversion works with."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from actnn.amounts import AVERAGES
from actnn.errors import ConfigError
from actnn.format import GROUP, MAX_BITS, Rounding

ROUNDINGS = {rounding.name.lower(): rounding for rounding in Rounding}


@dataclass(frozen=True)
class Policy:
    """How one converted model keeps its activations.

    ``bits`` holds the average width of each group of layers. Samples of one code may differ in width where
    ``adaptive_maps`` and ``adaptive_batch_norm`` say so, layers of one group where ``per_layer`` does. With
    ``companding``, levels lie closer together where values are small. ``other_bits`` is the width of codes of what
    functions without a rule save, None where that stays exact.
    """

    compress: bool
    bits: tuple[float, ...]
    compress_batch_norm: bool
    adaptive_maps: bool
    adaptive_batch_norm: bool
    per_layer: bool
    use_gradient: bool
    swap: bool
    swap_dir: str | None
    swap_bytes: int | None
    arena: bool
    trim_threshold: float | None
    rounding: Rounding
    companding: bool
    share_codes: bool
    other_bits: int | None
    overwrite: bool
    pipeline_threshold: int | None
    cudnn_benchmark: bool
    log_memory: bool
    log_speed: bool

    @property
    def adaptive(self) -> bool:
        """Whether any width is decided while training."""
        return self.compress and (self.adaptive_maps or self.adaptive_batch_norm or self.per_layer)

    def bits_of(self, group: int) -> float:
        """Return the average width of a layer's codes by its ``group``."""
        if not 0 <= group < len(self.bits):
            raise ConfigError(
                f"a layer has group={group}, but activation_compression_bits={list(self.bits)} "
                f"serves groups 0 to {len(self.bits) - 1}. Give it an entry for every group."
            )
        return self.bits[group]


@dataclass(frozen=True)
class Knob:
    """One setting: its default and a check that returns what is wrong with a value, or None."""

    default: Any
    problem: Callable[[Any], str | None]


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "expected True or False"


def _only(allowed: Any, reason: str) -> Callable[[Any], str | None]:
    def problem(value: Any) -> str | None:
        return None if value is allowed or value == allowed else f"expected {allowed!r}: {reason}"

    return problem


def average(width: Any) -> Any:
    """Return the width that a name stands for; anything else as it is."""
    return AVERAGES.get(width, width) if isinstance(width, str) else width


def _bits(value: Any) -> str | None:
    if not isinstance(value, (list, tuple)) or not value:
        return "expected a list with one width for each layer group, such as [2], ['middle'] or [2, 8, 8]"
    for given in value:
        width = average(given)
        if isinstance(width, str):
            return f"{width!r} is not a width: expected one of {list(AVERAGES)}, or a number"
        if isinstance(width, bool) or not isinstance(width, (int, float)):
            return f"{width!r} is not a width"
        if not 1 <= width <= MAX_BITS:
            return f"a width of {width} bits does not exist: expected 1 to {MAX_BITS}"
    return None


def _other_bits(value: Any) -> str | None:
    width = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_BITS
    return None if value is None or width else f"expected None, or a whole number of 1 to {MAX_BITS}, such as 8"


def _rounding(value: Any) -> str | None:
    return None if isinstance(value, str) and value in ROUNDINGS else f"expected one of {sorted(ROUNDINGS)}"


def _directory(value: Any) -> str | None:
    fits = value is None or isinstance(value, (str, os.PathLike))
    return None if fits else "expected the path of a directory, or None for the system's temporary one"


def _share(value: Any) -> str | None:
    share = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1
    return None if value is None or share else "expected a share from 0 to 1, such as 0.2, or None for no trimming"


def _threshold(value: Any) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return None if value is None or whole else "expected a number of bytes, or None for no limit"


KNOBS: Mapping[str, Knob] = {
    "compress_activation": Knob(True, _boolean),
    "activation_compression_bits": Knob([2, 8, 8], _bits),
    "pergroup": Knob(True, _only(True, "the format has one range for each group of 256 elements")),
    "perlayer": Knob(True, _boolean),
    "initial_bits": Knob(8, _only(8, "first steps use the average width, so that they fit where later ones do")),
    "stochastic": Knob(True, _boolean),
    "rounding": Knob("dither", _rounding),
    "companding": Knob(True, _boolean),
    "share_codes": Knob(True, _boolean),
    "other_bits": Knob(None, _other_bits),
    "overwrite": Knob(True, _boolean),
    "group_size": Knob(GROUP, _only(GROUP, "the format fixes the size of a group")),
    "use_gradient": Knob(False, _boolean),
    "adaptive_conv_scheme": Knob(True, _boolean),
    "adaptive_bn_scheme": Knob(True, _boolean),
    "simulate": Knob(False, _only(False, "codes are always real; compare with level L0 instead")),
    "enable_quantized_bn": Knob(True, _boolean),
    "swap": Knob(False, _boolean),
    "swap_dir": Knob(None, _directory),
    "swap_bytes": Knob(None, _threshold),
    "arena": Knob(False, _boolean),
    "empty_cache_threshold": Knob(None, _share),
    "pipeline_threshold": Knob(None, _threshold),
    "cudnn_benchmark_conv2d": Knob(True, _boolean),
    "debug_memory_model": Knob(False, _boolean),
    "debug_speed": Knob(False, _boolean),
}

_ENVIRONMENT = {"debug_memory_model": "DEBUG_MEM", "debug_speed": "DEBUG_SPEED"}
_FIXED_WIDTHS = {"adaptive_conv_scheme": False, "adaptive_bn_scheme": False, "perlayer": False}

LEVELS: Mapping[str, Mapping[str, Any]] = {
    "L0": {"compress_activation": False, **_FIXED_WIDTHS},
    "L1": {"activation_compression_bits": [4], "enable_quantized_bn": False, **_FIXED_WIDTHS},
    "L2": {"activation_compression_bits": [4], **_FIXED_WIDTHS},
    "L2.5": {"activation_compression_bits": [2], "perlayer": False},
    "L3": {"activation_compression_bits": [2]},
    "L3.1": {
        "activation_compression_bits": [2],
        "pipeline_threshold": 3 * 2**30,
        "cudnn_benchmark_conv2d": False,
        "empty_cache_threshold": 0.2,
    },
    "L4": {"activation_compression_bits": [2], "swap": True},
    "L5": {"activation_compression_bits": [2], "swap": True, "arena": True, "empty_cache_threshold": 0.2},
    "swap": {"compress_activation": False, **_FIXED_WIDTHS, "swap": True},
}
# where things lie on this machine, and what changes no result, which are no matter of a level
_OF_THE_MACHINE = ("swap_dir", "swap_bytes", "overwrite", "debug_memory_model", "debug_speed")


class Config:
    """Settable attributes, read when a model is converted or a layer is made; see ``KNOBS`` for names and defaults."""

    def __init__(self) -> None:
        object.__setattr__(self, "_streams", 0)
        self.reset()

    def reset(self) -> None:
        """Give every setting its default."""
        for name, knob in KNOBS.items():
            value = list(knob.default) if isinstance(knob.default, list) else knob.default
            if name in _ENVIRONMENT:
                value = os.environ.get(_ENVIRONMENT[name], "").lower() in ("1", "true", "yes", "on")
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in KNOBS:
            close = difflib.get_close_matches(name, KNOBS, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Settings are: {', '.join(KNOBS)}."
            raise ConfigError(f"there is no setting {name!r}. {hint}")
        if problem := KNOBS[name].problem(value):
            raise ConfigError(f"config.{name} = {value!r}: {problem}.")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in KNOBS)})"

    def set_optimization_level(self, level: str) -> None:
        """Set every knob to what a level asks for, whatever was set before."""
        check_level(level)
        self.reset()
        for name, value in LEVELS[level].items():
            setattr(self, name, list(value) if isinstance(value, list) else value)

    def policy(self, level: str | None = None, bits: float | str | None = None) -> Policy:
        """Return the policy of these settings, or of a level and what these say of the machine.

        ``bits`` is the average width of all codes, by number or by name, None for that of the settings.
        """
        if level is not None:
            chosen = Config()
            chosen.set_optimization_level(level)
            for name in _OF_THE_MACHINE:
                setattr(chosen, name, getattr(self, name))
            return chosen.policy(bits=bits)
        values = {name: getattr(self, name) for name in KNOBS}
        if bits is not None:
            if problem := _bits([bits]):
                raise ConfigError(f"bits={bits!r}: {problem}.")
            values["activation_compression_bits"] = [bits] * len(values["activation_compression_bits"])
        # a list that was changed in place never passed __setattr__
        if problem := _bits(values["activation_compression_bits"]):
            raise ConfigError(f"config.activation_compression_bits: {problem}.")
        # along a curve only dither is unbiased
        dithers = values["stochastic"] and values["rounding"] == "dither"
        policy = Policy(
            compress=values["compress_activation"],
            bits=tuple(float(average(width)) for width in values["activation_compression_bits"]),
            compress_batch_norm=values["enable_quantized_bn"],
            adaptive_maps=values["adaptive_conv_scheme"],
            adaptive_batch_norm=values["adaptive_bn_scheme"],
            per_layer=values["perlayer"],
            use_gradient=values["use_gradient"],
            swap=values["swap"],
            swap_dir=None if values["swap_dir"] is None else os.fspath(values["swap_dir"]),
            swap_bytes=values["swap_bytes"],
            arena=values["arena"],
            trim_threshold=values["empty_cache_threshold"],
            rounding=ROUNDINGS[values["rounding"]] if values["stochastic"] else Rounding.NEAREST,
            companding=values["companding"] and dithers,
            share_codes=values["share_codes"],
            other_bits=values["other_bits"],
            overwrite=values["overwrite"],
            pipeline_threshold=values["pipeline_threshold"],
            cudnn_benchmark=values["cudnn_benchmark_conv2d"],
            log_memory=values["debug_memory_model"],
            log_speed=values["debug_speed"],
        )
        if policy.compress and not policy.adaptive and any(width != int(width) for width in policy.bits):
            raise ConfigError(
                f"activation_compression_bits={list(policy.bits)} holds a fractional average, which needs widths that "
                "differ: choose level 'L2.5' or 'L3', or whole numbers."
            )
        return policy

    def next_stream(self) -> int:
        """Return a number no layer had before, so that layers made one by one draw different noise."""
        stream: int = getattr(self, "_streams") + 1  # noqa: B009
        object.__setattr__(self, "_streams", stream)
        return stream


def check_level(level: str) -> None:
    """Raise ConfigError unless a level exists."""
    if not isinstance(level, str) or level not in LEVELS:
        raise ConfigError(f"there is no level {level!r}: expected one of {list(LEVELS)}.")


class SampleScheme:
    """What the original's scripts set; sessions with ``use_gradient`` read it when a forward begins.

    ``num_samples`` is the size of the training set, ``batch`` holds the positions in it of the next batch.
    """

    def __init__(self) -> None:
        self.num_samples: int | None = None
        self.batch: Any = None


# what users change: it only prepares the policy of the next conversion
config = Config()
set_optimization_level = config.set_optimization_level

# the original's two names for the samples of the next batch
QScheme = SampleScheme()
QBNScheme = QScheme
