"""What all rows of the compiled backend share: the library, its threads, and room to work in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actnn.errors import UnsupportedError
from actnn.kernels.contract import AnyLayout, Array, Arrays, Channels, check_buffer
from actnn.kernels.native.library import SIMD, c_runtime, heap_usage, load, refuse
from actnn.kernels.native.structures import MOST_SCRATCH, Divisions, Scratch, c_channels, layout_handle


class Calls:
    """A loaded library and how to call it; its functions are bound once."""

    def __init__(self, path: Path, simd: str | None = None) -> None:
        self.path = path
        self._library = load(path)
        best = self._library.actnn_best_simd()
        self._simd = best if simd is None else SIMD.index(simd)
        if self._simd > best:
            raise UnsupportedError(f"this CPU does not run {simd}: the best it does is {SIMD[best]}.")
        self._lent = False
        self._scratch = Scratch()
        self._divisions = Divisions()
        self._workspaces: dict[tuple[int, ...], tuple[int, int]] = {}

    @property
    def simd(self) -> str:
        """Name of the instruction set in use."""
        return SIMD[self._simd]

    @property
    def max_threads(self) -> int:
        """Threads that the library's OpenMP runtime would use by itself."""
        return int(self._library.actnn_max_threads())

    def shares(self, runtime: Path) -> bool:
        """Tell whether kernels can compute with the threads of an OpenMP runtime: one they know, and loaded already."""
        return c_runtime(runtime) is not None

    def copy(self, arrays: Arrays, values: Array, out: Array, nbytes: int, piece: int) -> None:
        """Copy memory with the kernels' own threads, a memcpy for each piece: a yardstick for their speed."""
        pointers = arrays.pointer(values), arrays.pointer(out)
        refuse("actnn_copy", self._library.actnn_copy(nbytes, piece, self._threads(arrays), *pointers))

    def clear(self, arrays: Arrays, out: Array, nbytes: int, piece: int) -> None:
        """Clear memory with the kernels' own threads, a memset for each piece: a yardstick for their speed."""
        refuse("actnn_clear", self._library.actnn_clear(nbytes, piece, self._threads(arrays), arrays.pointer(out)))

    def heap_usage(self) -> tuple[int, int] | None:
        """Return the bytes that the C library holds, and of them those that nobody uses; None where it cannot tell."""
        return heap_usage(self._library)

    def trim_heap(self) -> bool:
        """Let the system have what the C library holds and nobody uses; tell whether that can be done here."""
        return not self._library.actnn_trim_heap()

    def separate_blocks(self, least: int) -> bool:
        """Let blocks of at least so many bytes go back to the system when freed; tell whether that can be done here."""
        return not self._library.actnn_separate_blocks(least)

    def _threads(self, arrays: Arrays) -> int:
        """Let the next kernel of this thread compute with the threads of whoever lends arrays; return how many."""
        # as long as nobody lent another runtime, every thread computes with the one that the library is linked to
        if arrays.lends_threads or self._lent:
            runtime = arrays.runtime()
            self._lent = self._lent or runtime is not None
            if self._lent:
                self._library.actnn_use_runtime(None if runtime is None else c_runtime(runtime))
        return arrays.threads()

    def _room(self, layout: AnyLayout, channels: Channels, backward: bool) -> tuple[int, Any]:
        """Return where a BatchNorm's forward or backward may work, and what must live as long as it does."""
        shape = layout.samples, layout.elements, channels.count, channels.inner
        found = self._workspaces.get(shape)
        if found is None:
            form = layout.handle or layout_handle(layout), c_channels(channels)
            library = self._library
            found = library.actnn_forward_workspace(*form), library.actnn_backward_workspace(*form)
            self._workspaces[shape] = found
        floats = found[backward]
        return (self._scratch.address, None) if floats <= MOST_SCRATCH else self._scratch.room(floats)


def space(arrays: Arrays, like: Array, nbytes: int, buffer: Array | None) -> Array:
    """Return bytes for a code: the buffer that the caller gave, or new ones."""
    return arrays.empty((nbytes,), "uint8", like) if buffer is None else check_buffer(arrays, buffer, nbytes)
