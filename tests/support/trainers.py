"""Small runs of real trainers, each in a process of its own: run whole, or killed and run again, they save weights.

``python trainers.py FOLDER`` imports all trainers once and forks a process for each run, before which nothing was
computed: ``FOLDER/NAME/whole`` has what the whole run came to, ``parts`` what the killed and resumed one did.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import actnn

# steps of a run, after which of them a checkpoint is saved, and after which the run is killed
STEPS, SAVED, KILLED = 8, 4, 6
CLASSES = 3
WEIGHTS = "weights.pt"


def network() -> nn.Module:
    """Return a small network with the kinds of layer that share codes."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)),
        *(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 64, CLASSES)),
    )


def images() -> TensorDataset:
    """Return samples for one epoch of ``SAVED`` batches of 8."""
    generator = torch.Generator().manual_seed(1)
    shape = (8 * SAVED, 2, 12, 12)
    labels = torch.randint(0, CLASSES, (len(range(shape[0])),), generator=generator)
    return TensorDataset(torch.randn(shape, generator=generator), labels)


def die() -> None:
    """End this process as a scheduler would: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def finish(model: nn.Module, folder: Path, notes: dict[str, Any]) -> None:
    """Save what the run came to."""
    torch.save({"weights": model.state_dict(), "notes": notes}, folder / WEIGHTS)


def lightning(folder: Path, kill: bool) -> None:
    """Train a LightningModule."""
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    from actnn.integrations.lightning import ActnnCallback

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if kill and self.global_step == KILLED:
                die()
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)

    model, callback = Classifier(), ActnnCallback(level="L3")
    saves = pl.callbacks.ModelCheckpoint(folder, save_last=True)
    trainer = pl.Trainer(
        max_epochs=STEPS // SAVED,
        accelerator="cpu",
        callbacks=[callback, saves],
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = folder / "last.ckpt"
    trainer.fit(model, DataLoader(images(), 8), ckpt_path=last if last.exists() else None)
    logged = {name: float(value) for name, value in trainer.logged_metrics.items()}
    finish(model.network, folder, logged | {"bits of layers": widths(callback.wrapper)})


def huggingface(folder: Path, kill: bool) -> None:
    """Train a model of Hugging Face with its Trainer."""
    import transformers
    from transformers.trainer_utils import get_last_checkpoint

    from actnn.integrations.huggingface import compress

    transformers.logging.set_verbosity_error()
    transformers.set_seed(0)
    shape = {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 32, "vocab_size": 40}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    words = torch.randint(0, 40, (40, 32), generator=torch.Generator().manual_seed(2))
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=STEPS,
        save_steps=SAVED,
        logging_steps=1,
        per_device_train_batch_size=8,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )

    class Killed(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if kill and state.global_step == KILLED:
                die()

    data = [{"input_ids": row, "labels": row} for row in words]
    trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[Killed()])
    trainer = compress(trainer, level="L3")
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    notes = {name: value for name, value in steps[-1].items() if name.startswith("actnn/")}
    wrapper = next(each.wrapper for each in trainer.callback_handler.callbacks if hasattr(each, "wrapper"))
    finish(model, folder, notes | {"bits of layers": widths(wrapper)})


def accelerate(folder: Path, kill: bool) -> None:
    """Train in a loop of Accelerate's kind."""
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker, on_main_process

    from actnn.integrations.accelerate import compress, log

    class Notes(GeneralTracker):
        name, requires_logging_directory = "notes", False

        def __init__(self) -> None:
            super().__init__()
            self.values: dict[str, Any] = {}

        tracker = None

        @on_main_process
        def store_init_configuration(self, values: Any) -> None:
            """Take no note of settings."""

        @on_main_process
        def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            self.values.update(values)

    tracker = Notes()
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("run")
    torch.manual_seed(3)
    compressed = model = compress(accelerator, network(), level="L3")
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(images(), 8))
    saved, taken = folder / "state", 0
    if saved.exists():
        accelerator.load_state(str(saved))
        taken = SAVED
    while taken < STEPS:
        for inputs, labels in loader:
            if kill and taken == KILLED:
                die()
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            taken += 1
            log(accelerator, model, {"step": taken}, taken)
        if taken == SAVED:
            accelerator.save_state(str(saved))
    finish(accelerator.unwrap_model(model), folder, tracker.values | {"bits of layers": widths(compressed)})


def timm(folder: Path, kill: bool) -> None:
    """Train in a loop of timm's kind."""
    from timm.models import resume_checkpoint
    from timm.utils import CheckpointSaver

    from actnn.integrations.timm import SessionScaler, figures

    model = actnn.QModule(network(), level="L3")
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = SessionScaler(model)
    saver = CheckpointSaver(model, optimizer, amp_scaler=scaler, checkpoint_dir=str(folder))
    last, first = folder / "last.pth.tar", 0
    if last.exists():
        first = resume_checkpoint(model, str(last), optimizer, scaler)
    taken = first * SAVED
    torch.manual_seed(first)
    for epoch in range(first, STEPS // SAVED):
        for inputs, labels in DataLoader(images(), 8, shuffle=True, generator=torch.Generator().manual_seed(epoch)):
            if kill and taken == KILLED:
                die()
            optimizer.zero_grad()
            scaler(nn.functional.cross_entropy(model(inputs), labels), optimizer, 1.0, parameters=model.parameters())
            taken += 1
        saver.save_checkpoint(epoch, metric=float(epoch))
    finish(model, folder, figures(model) | {"bits of layers": widths(model)})


def own_loop(folder: Path, kill: bool) -> None:
    """Train in a loop of one's own, with dropout, shuffling and noise from all generators."""
    torch.manual_seed(5)
    model = actnn.QModule(nn.Sequential(network(), nn.Dropout(0.1)), level="L3")
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    saved, taken = folder / "run.pt", 0
    if saved.exists():
        taken = actnn.load(saved, model, optimizer=optimizer, scheduler=scheduler)["taken"]
    while taken < STEPS:
        for inputs, labels in DataLoader(images(), 8, shuffle=True):
            if kill and taken == KILLED:
                die()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            scheduler.step()
            taken += 1
        if taken == SAVED:
            actnn.save(saved, model, optimizer=optimizer, scheduler=scheduler, taken=taken)
    report = model.report()
    notes = {"actnn/kept_bytes": report.kept_bytes, "actnn/bits": report.average_bits}
    finish(model, folder, notes | {"bits of layers": widths(model)})


def widths(model: Any) -> list[float]:
    """Return the width of each code."""
    return [row.bits for row in model.report().rows if row.bits is not None]


RUNS: dict[str, Callable[[Path, bool], None]] = {
    "Lightning": lightning,
    "Hugging Face Trainer": huggingface,
    "Accelerate": accelerate,
    "timm": timm,
    "own loop": own_loop,
}


# what a forked process is not to import by itself
IMPORTED = ("lightning.pytorch", "transformers", "transformers.trainer", "accelerate", "timm", "timm.utils")


def forked(trainer: str, folder: Path, kill: bool) -> int:
    """Train in a process of its own; return its exit code, negative for a signal."""
    folder.mkdir(parents=True, exist_ok=True)
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = 1
    try:
        RUNS[trainer](folder, kill)
        code = 0
    except BaseException:
        (folder / "error.txt").write_text(traceback.format_exc())
    finally:
        # nothing of the parent's is to be cleaned up here
        os._exit(code)


def train_all(folder: Path) -> None:
    """Run every trainer whole, killed and resumed; write down how each process ended."""
    for name in IMPORTED:
        importlib.import_module(name)
    codes = {}
    for trainer in RUNS:
        whole, parts = folder / trainer / "whole", folder / trainer / "parts"
        codes[trainer] = [forked(trainer, whole, False), forked(trainer, parts, True), forked(trainer, parts, False)]
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_all(Path(sys.argv[1]))
