"""A store that keeps buffers on disk between forward and backward: they leave in the background and are back in time.

NOTE: rules of the store, to which its modules refer.

1. No reference to the store itself lives in the background thread: a store that nobody holds any more ends its thread.
2. Garbage collection can run at any moment, also in a thread that holds the lock. What finalizers may call, ``release``
   and the end of a store, therefore never waits for the lock: it leaves a message in a ``SimpleQueue``, whose ``put``
   is reentrant, for whoever holds the lock next.
3. No lock and no thread of a parent process is touched in its child. What the parent had in memory is taken over.
4. Bytes leave memory only after they were written, and a place in the file is given away only when nobody writes to it
   or reads from it.
5. Whatever fails while writing leaves buffers in memory, and is warned of once. Whatever fails while reading ahead is
   met again, and raised, by the ``get`` that needs those bytes.
"""

from actnn.stores.disk.store import SwapStatistics, SwapStore

__all__ = ["SwapStatistics", "SwapStore"]
