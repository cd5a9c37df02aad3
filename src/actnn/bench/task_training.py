"""One run of ``actnn bench tasks``, inside a child: a training to its end, and the memory of a few steps."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from actnn.bench import task_plan
from actnn.measuring.memory import peak_growth
from actnn.measuring.processes import Told
from actnn.workloads import peers, tasks
from actnn.workloads.contestant import Contestant
from actnn.workloads.runs.contestants import load_data
from actnn.workloads.training import Training, step_count

# a level that decides widths needs some to settle
STEPS_WEIGHED = 4
# what methods that look at a step beforehand are shown
SMALL_BATCH = 2
DIGITS = 4


def prepared(settings: Mapping[str, Any]) -> Training:
    """Return a training before its first step; whoever trains, weights and examples are those of the seed."""
    import torch

    torch.set_num_threads(settings["threads"])
    seed = settings["seed"]
    run = task_plan.settings_of(settings["task"], seed)
    goal, data = tasks.find(run.task), load_data(run)
    torch.manual_seed(seed)
    who = Contestant(settings["contestant"], settings["bits"])
    model = who.applied(goal.build(run, data), seed).train()
    if peers.is_to_prepare(model):
        given, wanted = data.train.batch(torch.arange(SMALL_BATCH), None)
        peers.prepare(model, lambda: goal.loss(model, given, wanted, data, run.recipe).backward())
    torch.manual_seed(seed)
    learns_samples = run.samples and hasattr(model, "set_samples")
    return Training(
        model,
        data,
        batch=run.batch,
        steps=step_count(data.train.image_count, run.batch, run.epochs),
        seed=seed,
        recipe=run.recipe,
        before_step=model.set_samples if learns_samples else lambda positions: None,
        goal=goal,
    )


def train(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Train to the end; return the score, the loss of the last epoch and what it took."""
    training = prepared(settings)
    begin, processor = time.perf_counter(), time.process_time()
    loss = math.nan
    for _ in range(settings["task"]["epochs"]):
        while not training.epoch_is_over:
            if not math.isfinite(training.advance()):
                return figures(None, None, time.perf_counter() - begin, time.process_time() - processor)
            tell(1)
        loss = training.end_epoch()
    seconds, processor = time.perf_counter() - begin, time.process_time() - processor
    return figures(training.score(), loss, seconds, processor)


def figures(score: float | None, loss: float | None, seconds: float, processor: float) -> dict[str, Any]:
    """Return what a training reached; what diverged has no score."""
    return {
        "score": score,
        "loss": loss,
        "diverged": score is None,
        "seconds": round(seconds, DIGITS),
        "processor_seconds": round(processor, DIGITS),
    }


def weigh(settings: Mapping[str, Any], tell: Told) -> dict[str, Any]:
    """Return what autograd keeps of a step, and by how much the process grows in one, above what it held before."""
    from actnn.torch.memory import KeptBytes

    training = prepared(settings)
    for _ in range(settings["steps"]):
        kept = KeptBytes(training.model)
        training.step(next(training.batches()), kept)
        tell(1)
    positions = next(training.batches())
    return {"kept_bytes": kept.total, "peak_bytes": peak_growth(lambda: training.step(positions))}
