"""The snippets of README and guide: what each is, and the names that a reader has before a snippet runs."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/guide.md")
# an indented block, the way all pages write code; blank lines inside of it belong to it
BLOCK = re.compile(r"^ {4}\S.*\n(?:(?: {4}.*)?\n)*", re.MULTILINE)
# what stands for lines or arguments that the reader has
LEFT_OUT = "…"
SHELL, FORMULA, SETTINGS = "shell", "formula", "settings"
Names = dict[str, Any]


class Snippet(NamedTuple):
    """A block of code, and where it stands."""

    page: str
    line: int
    text: str

    @property
    def first(self) -> str:
        """Its first line, without a comment."""
        return self.text.splitlines()[0].partition("  #")[0].strip()

    @property
    def program(self) -> str:
        """Its Python."""
        return re.sub(rf"(^ *|, ){LEFT_OUT}", r"\1...", self.text, flags=re.MULTILINE)


def snippets() -> list[Snippet]:
    """Return all snippets of all pages."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for block in BLOCK.finditer(text):
            lines = [line[4:] for line in block[0].rstrip().splitlines()]
            found.append(Snippet(page, text[: block.start()].count("\n") + 1, "\n".join(lines)))
    return found


def nothing() -> Names:
    return {}


def training() -> Names:
    """A converted model that is about to take a step."""
    import torch
    from torch import nn
    from torch.nn import functional

    import actnn

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(300, 8), nn.ReLU(), nn.Linear(8, 10))
    model = actnn.QModule(plain)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.randn(8, 3, 10, 10), torch.randint(0, 10, (8,)))
    images, labels = data.tensors
    return {
        "actnn": actnn,
        "torch": torch,
        "nn": nn,
        "F": functional,
        "model": model,
        "images": images,
        "labels": labels,
        "criterion": nn.CrossEntropyLoss(),
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "epoch": 3,
        "dataset": data,
        "loader": torch.utils.data.DataLoader(data, 4),
        "loss": torch.zeros(()),
        "step": 1,
    }


def plain() -> Names:
    """A model that nobody converted."""
    names = training()
    return names | {"model": names["model"].restore()}


def registered() -> Names:
    """A network with a part named layer1, and a class that computes a norm in pieces."""
    names = training()
    nn = names["nn"]

    class MyNorm(nn.Module):
        pass

    parts = {"layer1": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), "flat": nn.Flatten(), "head": nn.Linear(256, 10)}
    model = names["actnn"].QModule(nn.Sequential(OrderedDict(parts)))
    return names | {"model": model, "MyNorm": MyNorm, "as_rms_norm": lambda module, x: x}


def blocks() -> Names:
    """A model whose parts have the names of a transformer's."""
    names = plain()
    nn = names["nn"]

    def block() -> Any:
        return nn.ModuleDict({"norm1": nn.LayerNorm(8), "attn": nn.MultiheadAttention(8, 2), "fc1": nn.Linear(8, 8)})

    return names | {"model": nn.ModuleDict({"blocks": nn.ModuleList([block(), block()])})}


def huggingface() -> Names:
    """A model, texts and a run of Hugging Face's Trainer that saved a checkpoint."""
    import torch
    import transformers

    from actnn.integrations.huggingface import compress

    shape = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8, "vocab_size": 12}
    config = transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0)
    words = [{"input_ids": row, "labels": row} for row in torch.randint(0, 12, (4, 8))]
    options: Names = {"use_cpu": True, "disable_tqdm": True, "report_to": [], "save_steps": 1}

    def arguments(steps: int) -> Any:
        return transformers.TrainingArguments("checkpoints", max_steps=steps, per_device_train_batch_size=2, **options)

    model = transformers.GPT2LMHeadModel(config)
    compress(transformers.Trainer(model, arguments(1), train_dataset=words), level="L3").train()
    model = transformers.GPT2LMHeadModel(config)
    return {"Trainer": transformers.Trainer, "model": model, "arguments": arguments(2), "data": words}


def lightning() -> Names:
    """A LightningModule and a checkpoint of it."""
    import lightning.pytorch as pl
    import torch

    from actnn.integrations.lightning import ActnnCallback

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(300, 2)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0].flatten(1)).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    def trainer(callbacks: list[Any], epochs: int = 2) -> Any:
        quiet: Names = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        return pl.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=callbacks, **quiet)

    loader = training()["loader"]
    first = trainer([ActnnCallback(level="L3")], 1)
    first.fit(Classifier(), loader)
    first.save_checkpoint("last.ckpt")
    return {"Trainer": trainer, "module": Classifier(), "loader": loader}


def accelerate() -> Names:
    """A plain model and an accelerator."""
    from accelerate import Accelerator

    return plain() | {"accelerator": Accelerator(cpu=True)}


def timm() -> Names:
    """What timm's training script has at hand, with a checkpoint of an epoch before."""
    from timm.models import resume_checkpoint
    from timm.utils import CheckpointSaver

    from actnn.integrations.timm import SessionScaler

    names = training()
    scaler = SessionScaler(names["model"])
    CheckpointSaver(names["model"], names["optimizer"], amp_scaler=scaler, checkpoint_dir=".").save_checkpoint(0, 0.0)
    own = {"CheckpointSaver": CheckpointSaver, "resume_checkpoint": resume_checkpoint}
    return names | own | {"metrics": {}, "update_summary": lambda *arguments: None}


class Kind(NamedTuple):
    """How a snippet is tried: the names it runs with, and the package that it needs."""

    names: Callable[[], Names]
    package: str = "torch"


# by page and first line; words for what is no Python
KINDS: dict[tuple[str, str], Kind | str] = {
    ("README.md", "model = actnn.QModule(model)"): Kind(plain),
    ("README.md", "make demo"): SHELL,
    ("README.md", "pip install '.[torch]'"): SHELL,
    ("README.md", "import torch"): Kind(nothing),
    ("README.md", "plain = model.restore()"): Kind(registered),
    ("README.md", "import paddle"): Kind(nothing, "paddle"),
    ("README.md", "actnn train --data digits --model small_resnet --level L3 --epochs 2 --out runs/digits"): SHELL,
    (
        "docs/guide.md",
        "actnn train --task segmentation --data masks:pets --model fpn --size 128 --compare exact",
    ): SHELL,
    ("docs/guide.md", "[pets]"): SETTINGS,
    ("docs/guide.md", 'actnn.set_optimization_level("L3")'): Kind(training),
    (
        "docs/guide.md",
        "for indices, (images, labels) in actnn.DataLoader(dataset, batch_size=64, shuffle=True):",
    ): Kind(training),
    ("docs/guide.md", "result = actnn.verify(model, (images, labels), criterion, draws=32)"): Kind(training),
    ("docs/guide.md", 'actnn.QModule(model, exact=["blocks.0", "*.norm1", nn.MultiheadAttention])'): Kind(blocks),
    ("docs/guide.md", "class ScaleNorm(nn.Module):"): Kind(plain),
    (
        "docs/guide.md",
        'actnn.save("run.pt", model, optimizer=optimizer, scheduler=scheduler, epoch=epoch)',
    ): Kind(training),
    ("docs/guide.md", "from actnn.integrations.huggingface import compress"): Kind(huggingface, "transformers"),
    ("docs/guide.md", "from actnn.integrations.lightning import ActnnCallback"): Kind(lightning, "lightning"),
    ("docs/guide.md", "from actnn.integrations.accelerate import compress, log"): Kind(accelerate, "accelerate"),
    ("docs/guide.md", "from actnn.integrations.timm import SessionScaler, figures"): Kind(timm, "timm"),
    (
        "docs/guide.md",
        "torchrun --nproc-per-node 2 --max-restarts 3 -m actnn train --data digits --parallel ddp --out runs/digits",
    ): SHELL,
    ("docs/guide.md", "model = actnn.compile(model, bits=2)"): Kind(plain),
    ("docs/guide.md", 'model = actnn.compile(model, level="L3", bits=2)'): Kind(plain),
    ("docs/guide.md", 'actnn.set_optimization_level("L2")'): Kind(training),
    (
        "docs/guide.md",
        "q = floor(B (x - z) / r + u),        decoded as   x̂ = z + (q - u + 1/2) r / B",
    ): FORMULA,
    ("docs/guide.md", "E‖∇L(θ_t)‖² ≤ 2 (L(θ_1) - L_inf) / (α T) + α β σ²"): FORMULA,
    (
        "docs/guide.md",
        "Σ_l Σ_n w_n^(l) / (2^(b_n^(l)) - 1)²      subject to      Σ_l D^(l) Σ_n b_n^(l) ≤ the budget",
    ): FORMULA,
}
