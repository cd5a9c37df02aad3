"""Several processes that train one model together, as torchrun starts them: who writes, and what all agree on.

NOTE [Processes]
1. Every process has the same settings, sees the same order of images, and takes its part of each batch.
2. The first process writes log, checkpoint and weights. All read the checkpoint before it may be replaced.
3. What a process decides by its clock or by a signal, whether to save and whether to stop, all decide together: one
   that left the others alone would let them wait for ever.
4. Where a process is killed the others fail in their next exchange, and torchrun starts all anew, which go on from the
   last checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from actnn.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

DDP, FSDP2 = "ddp", "fsdp2"
WAYS = (DDP, FSDP2)
# how long a process waits for the others
PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class Processes:
    """The processes of a run, this one among them."""

    number: int = 0
    count: int = 1
    way: str | None = None

    @property
    def writes(self) -> bool:
        """Whether this process writes."""
        return self.number == 0

    @property
    def together(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    def part(self, positions: Tensor) -> Tensor:
        """Return the images of a batch that this process takes."""
        return positions[self.number :: self.count]

    def mean_loss(self, loss: float, images: int, total: int) -> float:
        """Return the mean loss of a batch of so many images in total, of which this process took some."""
        if not self.together:
            return loss
        import torch
        from torch import distributed

        everyone = torch.tensor([loss * images / total], dtype=torch.float64)
        distributed.all_reduce(everyone)
        return float(everyone.item())

    def any(self, *wishes: bool) -> tuple[bool, ...]:
        """Return which of some wishes a process has."""
        if not self.together:
            return wishes
        import torch
        from torch import distributed

        everyone = torch.tensor(wishes, dtype=torch.int32)
        distributed.all_reduce(everyone, distributed.ReduceOp.MAX)
        return tuple(bool(wish) for wish in everyone.tolist())

    def wait(self) -> None:
        """Go on when all processes are here."""
        if self.together:
            from torch import distributed

            distributed.barrier()


ALONE = Processes()


def restarted(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether torchrun started this process anew, after one of its group had failed."""
    return environment.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


@contextmanager
def joined(way: str | None, environment: Mapping[str, str] = os.environ) -> Iterator[Processes]:
    """Join the processes that torchrun started beside this one, and leave them at the end."""
    count = int(environment.get("WORLD_SIZE", "1"))
    if count == 1:
        if way is not None:
            raise ConfigError(
                f"--parallel {way} is for several processes, and this one is alone: start it with "
                "torchrun --nproc-per-node 2 -m actnn train …"
            )
        yield ALONE
        return
    from torch import distributed

    if not distributed.is_available():
        raise UnsupportedError("this build of torch knows no processes: train with one, without torchrun.")
    # data and models of this command are on the host
    distributed.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield Processes(distributed.get_rank(), count, way or DDP)
    finally:
        distributed.destroy_process_group()


def distributed_model(model: Any, processes: Processes) -> Any:
    """Return what trains a model in all processes."""
    if not processes.together:
        return model
    if processes.way == DDP:
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def of_all(value: Any, processes: Processes) -> list[Any] | None:
    """Return what each process gives, None where there is only one."""
    if not processes.together:
        return None
    from actnn.torch.checkpoint import CHECKPOINTS

    return CHECKPOINTS.of_all_processes(value)


def states(learner: Any, optimizer: Any, processes: Processes) -> tuple[Any, Any]:
    """Return the states of a model and its optimizer; of several processes, the first one's are whole."""
    if not processes.together:
        return learner.state_dict(), optimizer.state_dict()
    from actnn.torch.sharded import model_state, optimizer_state

    return model_state(learner), optimizer_state(learner, optimizer)


def load_states(learner: Any, optimizer: Any, model_state: Any, optimizer_state: Any, processes: Processes) -> None:
    """Give a model and its optimizer what ``states`` returned in the first process."""
    if not processes.together:
        learner.load_state_dict(model_state)
        optimizer.load_state_dict(optimizer_state)
        return
    from actnn.torch.sharded import load_model_state, load_optimizer_state

    load_model_state(learner, model_state)
    load_optimizer_state(learner, optimizer, optimizer_state)
