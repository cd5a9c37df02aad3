"""A CUDA device that is not there: torch's fake tensors play it, and tell launches, host reads and memory.

Import this module before torch: which hooks a device has is looked up once.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import subprocess
import sys
import sysconfig
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("fake_cuda_guard.cpp")


def built_guard() -> Path:
    """Compile the guard against the headers of the torch that is installed, once for each of both."""
    packages = Path(find_spec("torch").origin).parent
    version = (packages / "version.py").read_bytes()
    name = hashlib.sha256(SOURCE.read_bytes() + version + sysconfig.get_platform().encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"actnn-fake-cuda-{os.getuid()}-{name}.so"
    if not library.exists():
        partial = library.with_suffix(f".{os.getpid()}")
        paths = [f"-I{packages / 'include'}", f"-L{packages / 'lib'}", f"-Wl,-rpath,{packages / 'lib'}"]
        options = ["-shared", "-fPIC", "-O0", "-std=c++20", *paths]
        subprocess.run(["g++", *options, str(SOURCE), "-o", str(partial), "-ltorch_cpu", "-lc10"], check=True)
        partial.rename(library)
    return library


if "torch" in sys.modules:
    raise ImportError("fake_cuda was imported after torch, which has looked for CUDA already: import it first.")
ctypes.CDLL(str(built_guard()), mode=os.RTLD_NOW | os.RTLD_GLOBAL).register_fake_cuda()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_iter  # noqa: E402

from actnn.kernels import table  # noqa: E402
from actnn.kernels.triton import Triton  # noqa: E402
from actnn.stores.store import Swap  # noqa: E402
from actnn.torch.tensors import TorchArrays  # noqa: E402

# what makes no work for a device, besides views
IDLE = {
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
    "lift_fresh",
    "device",
}
# a fake storage has no address: each plays one of so many bytes
ROOM = 1 << 40


class HostReadError(AssertionError):
    """The host was to wait for a number of the device."""


@dataclass
class Step:
    """What one step did: launches by kind, copies to the host and from it, and the most bytes that lived at once."""

    launches: Counter[str] = field(default_factory=Counter)
    out: int = 0
    out_bytes: int = 0
    up: int = 0
    peak_bytes: int = 0

    @property
    def total(self) -> int:
        return sum(self.launches.values())


class Meter(TorchDispatchMode):
    """Counts what operations of torch would launch and allocate on the device; refuses to read from it."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode = mode
        self.step = Step()
        self._live: dict[int, int] = {}
        self.live_bytes = 0

    def begin(self) -> None:
        """Begin a new step."""
        self.step = Step(peak_bytes=self.live_bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        # what torch remembers of this one holds the memory that it was given
        self._mode.cache_enabled = name != "set_"
        result = func(*args, **(kwargs or {}))
        given, made = ([x for x in tree_iter(tree) if isinstance(x, torch.Tensor)] for tree in ((args, kwargs), result))
        if any(x.is_cuda for x in (*given, *made)) and name not in IDLE and not is_view(func):
            if any(x.is_cuda for x in given) and any(not x.is_cuda for x in made):
                raise HostReadError(f"{func} copies from the device to the host, which waits for it")
            if made and all(not x.is_cuda for x in given) and given:
                self.step.up += 1
            self.step.launches[name] += 1
        for x in made:
            self._note(x)
        return result

    def _note(self, x: torch.Tensor) -> None:
        if not x.is_cuda:
            return
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._live:
            self._live[key] = size
            self.live_bytes += size
            self.step.peak_bytes = max(self.step.peak_bytes, self.live_bytes)
            weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.live_bytes -= self._live.pop(key)


def is_view(func: Any) -> bool:
    """Tell whether an operation returns its input, or a part of it, without writing to it."""
    returned = func._schema.returns
    return bool(returned) and all(each.alias_info is not None and not each.alias_info.is_write for each in returned)


class Recorder:
    """A launcher that runs nothing: it looks at what a kernel is launched with."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def __call__(self, arrays: Any, like: Any, kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        if programs <= 0:
            return
        self._meter.step.launches[kernel.fn.__name__] += 1
        names = kernel.arg_names
        assert len(arguments) + len(constants) == len(names), f"{kernel.fn.__name__} takes {names}"
        for name, value in zip(names, arguments, strict=False):
            if isinstance(value, torch.Tensor):
                assert value.is_cuda, f"{name} of {kernel.fn.__name__} is not on the device"
                assert dense(value), f"{name} of {kernel.fn.__name__} has gaps: {value.shape} by {value.stride()}"
            else:
                plain = value is None or isinstance(value, (bool, int, float, tuple))
                assert plain, f"{name} of {kernel.fn.__name__} is a {type(value).__name__}"


def dense(x: torch.Tensor) -> bool:
    """Tell whether the elements of a tensor lie without gaps, in any order of axes."""
    expected = 1
    for size, stride in sorted(zip(x.shape, x.stride(), strict=True), key=lambda axis: axis[1]):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


class FakeMoves:
    """Copies to the host and back that arrive after some steps; nothing ever waits for one."""

    def __init__(self, meter: Meter, mode: FakeTensorMode, late: int) -> None:
        self._meter, self._mode, self._late = meter, mode, late
        self._numbers = np.random.default_rng(0)
        self.clock = 0

    def out(self, buffer: torch.Tensor) -> tuple[np.ndarray, int]:
        self._meter.step.out += 1
        self._meter.step.out_bytes += len(buffer)
        # bytes that are widths one by one, and four together small positive floats
        return self._numbers.integers(2, 5, len(buffer), np.uint8), self.clock + self._late

    def back(self, host: np.ndarray) -> tuple[torch.Tensor, int]:
        with self._mode:
            return torch.empty(len(host), dtype=torch.uint8, device="cuda"), self.clock

    def arrived(self, event: int) -> bool:
        return event <= self.clock

    def finish(self, event: int) -> None:
        raise HostReadError("the host waits for a copy")

    def wait(self, buffer: torch.Tensor, event: int) -> None:
        pass


@dataclass
class FakeCuda:
    """The device while it is played."""

    meter: Meter
    moves: FakeMoves


@contextmanager
def played(late: int = 1) -> Iterator[FakeCuda]:
    """Let fake tensors play a device of CUDA whose copies to the host arrive ``late`` steps after they began."""
    numbers, addresses = itertools.count(1), weakref.WeakKeyDictionary()

    def pointer(x: torch.Tensor) -> int:
        storage = x.untyped_storage()
        if storage not in addresses:
            addresses[storage] = next(numbers) * ROOM
        return addresses[storage] + x.storage_offset() * x.element_size()

    numpy = TorchArrays.numpy

    def host_numbers(self: TorchArrays, x: Any) -> np.ndarray:
        return x if isinstance(x, np.ndarray) else numpy(self, x)

    ticket, get = TorchArrays.ticket, Swap.get

    # tickets are real: their number is read on the host
    def real_ticket(self: TorchArrays, number: int, release: Any) -> torch.Tensor:
        with unset_fake_temporarily():
            return ticket(self, number, release)

    def fetched(self: Swap, arrays: Any, saved: torch.Tensor) -> torch.Tensor:
        with unset_fake_temporarily():
            return get(self, arrays, saved)

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    meter = Meter(mode)
    moves = FakeMoves(meter, mode, late)
    backend = Triton(Recorder(meter))
    with ExitStack() as stack:
        replaced(stack, TorchArrays, "pointer", staticmethod(pointer))
        replaced(stack, TorchArrays, "numpy", host_numbers)
        replaced(stack, TorchArrays, "ticket", real_ticket)
        replaced(stack, Swap, "get", fetched)
        replaced(stack, TorchArrays, "moves", lambda self, x: moves)
        stack.callback(table.BACKENDS.__setitem__, "cuda", table.BACKENDS["cuda"])
        table.BACKENDS["cuda"] = lambda: backend
        stack.enter_context(mode)
        stack.enter_context(meter)
        yield FakeCuda(meter, moves)


def replaced(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Give an attribute another value until a stack of contexts is left."""
    stack.callback(setattr, owner, name, owner.__dict__[name])
    setattr(owner, name, value)
