"""``actnn bench kernels``: encoding and decoding against memcpy and memset over the same memory.

All take turns in one process with the same threads. Speeds count the bytes of the floats: what encoding and memcpy
read, what decoding and memset write. The yardsticks work in pieces of 256 KiB; one call for a thread's whole share,
which the C library can serve with stores past the caches, is measured too. Nothing is timed unless the kernels agree
with the reference.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np

from actnn.bench.agreement import check_agreement
from actnn.bench.arguments import add_recording, parser_of
from actnn.console.arguments import MOST_THREADS, at_least
from actnn.errors import ConfigError
from actnn.format import FAMILIES, GROUP, Layout, Part, Rounding, derive_key, uniform_layout
from actnn.kernels.contract import Array, Key
from actnn.kernels.native import SIMD, Native, find_library
from actnn.kernels.numpy_arrays import NumpyArrays
from actnn.measuring import memory, runs, timing

PIECE = 256 * 1024
# floats on which the kernels are compared with the reference
MOST_CHECKED = 2**20
# the floats, what they are decoded to, and a code that is smaller than either
ARRAYS = 3
COMPARED = (("encode", "memcpy"), ("decode", "memset"), ("encode", "memcpy_whole"), ("decode", "memset_whole"))
EXAMPLE = "actnn bench kernels --family two_sided --bits 3"


def main(argv: Sequence[str]) -> int:
    """Measure and print one JSON line."""
    arguments = parse(argv)
    return runs.interruptible(arguments.out, lambda: measure(arguments))


def parse(argv: Sequence[str]) -> Namespace:
    """Read the arguments."""
    parser = parser_of("kernels", __doc__, EXAMPLE)
    parser.add_argument("--megabytes", type=at_least(1), default=256, help="size of the float32 array (default: 256)")
    parser.add_argument("--family", choices=FAMILIES, default="two_sided")
    parser.add_argument("--bits", type=at_least(1), default=3)
    parser.add_argument("--rounding", choices=[rounding.name.lower() for rounding in Rounding], default="dither")
    parser.add_argument("--threads", type=at_least(1, MOST_THREADS), default=os.cpu_count() or 1)
    parser.add_argument("--simd", choices=SIMD, default=None)
    parser.add_argument("--rounds", type=at_least(1), default=15)
    add_recording(parser)
    return parser.parse_args(argv)


def measure(arguments: Namespace) -> None:
    """Measure what is not recorded yet and print the record."""
    check_memory(arguments.megabytes)
    native = Native(find_library(), arguments.simd)
    run = {
        "benchmark": "kernels",
        "code": f"{arguments.family} {arguments.bits} bits {arguments.rounding}",
        "simd": native.simd,
        "threads": arguments.threads,
        "megabytes": arguments.megabytes,
        "rounds": arguments.rounds,
    }
    runs.print_all(
        [[run]],
        lambda group, told: [figures(arguments, native)],
        arguments,
        words=lambda run: f"{run['code']}, {run['threads']} threads, {run['simd']}",
        found=lambda record: f"encoding at {record['encode_to_memcpy']:.2f} of memcpy's speed",
    )


def check_memory(megabytes: int) -> None:
    """Raise ConfigError for arrays that this machine cannot hold."""
    most = memory.machine_total() // ARRAYS // 2**20
    if megabytes > most:
        raise ConfigError(
            f"--megabytes {megabytes} is too much for {memory.machine_total() / 2**30:.1f} GiB of memory, which "
            f"{ARRAYS} such arrays must fit in: give at most {most}."
        )


def figures(arguments: Namespace, native: Native) -> dict[str, Any]:
    """Return the speeds of kernels that do what they should, and of yardsticks."""
    arrays = ReusedArrays(arguments.threads)
    elements = arguments.megabytes * 2**20 // 4
    layout = layout_of(arguments, elements)
    if elements % GROUP:
        raise ConfigError(f"--megabytes {arguments.megabytes} is no whole number of groups.")
    values = np.random.default_rng(0).standard_normal((1, elements), np.float32)
    key = derive_key(0, 0, 0)
    check_kernels(arguments, native, values, key)
    target = arrays.empty(values.shape, "float32", values)
    share = -(-values.nbytes // arguments.threads)
    code = native.encode(arrays, values, layout, key)
    times = timing.interleaved(
        {
            "memcpy": lambda: native.copy(arrays, values, target, values.nbytes, PIECE),
            "encode": lambda: native.encode(arrays, values, layout, key),
            "memset": lambda: native.clear(arrays, target, values.nbytes, PIECE),
            "decode": lambda: native.decode(arrays, code, layout, Part.WHOLE, "float32"),
            "memcpy_whole": lambda: native.copy(arrays, values, target, values.nbytes, share),
            "memset_whole": lambda: native.clear(arrays, target, values.nbytes, share),
        },
        arguments.rounds,
        warm_up=2,
    )
    medians = {name: timing.summary(seconds) for name, seconds in times.items()}
    speed = {name: values.nbytes / median["seconds"] for name, median in medians.items()}
    ratios = {f"{kernel}_to_{yardstick}": speed[kernel] / speed[yardstick] for kernel, yardstick in COMPARED}
    return {
        "gigabytes_per_second": {name: round(value / 1e9, 2) for name, value in speed.items()},
        **{name: round(ratio, 3) for name, ratio in ratios.items()},
        "times": medians,
    }


def layout_of(arguments: Namespace, elements: int) -> Layout:
    """Return the layout of so many elements of one sample, as the arguments ask for."""
    rounding = Rounding[arguments.rounding.upper()]
    return uniform_layout(1, elements, FAMILIES[arguments.family], arguments.bits, rounding)


def check_kernels(arguments: Namespace, native: Native, values: Array, key: Key) -> None:
    """Raise DisagreementError where kernels do not do what the reference defines with the first of the values.

    With all of them the reference would take minutes, and many times their memory.
    """
    some = values[:, :MOST_CHECKED]
    check_agreement(native, ReusedArrays(arguments.threads), some, layout_of(arguments, some.shape[1]), key)


class ReusedArrays(NumpyArrays):
    """numpy's arrays with a given number of threads, and results that are written to the same memory each time."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._arrays: dict[tuple[Any, ...], Array] = {}

    def threads(self) -> int:
        return self._threads

    def empty(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        place = (tuple(shape), dtype)
        if place not in self._arrays:
            self._arrays[place] = np.zeros(shape, dtype)
        return self._arrays[place]
