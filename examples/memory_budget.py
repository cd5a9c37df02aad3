"""A training loop of one's own with a memory budget, and checkpoints from which it goes on bit for bit."""

import tempfile
from pathlib import Path

import torch
from digits import accuracy, arguments, digits, network
from torch import Tensor
from torch.nn import functional as F

import actnn

BUDGET = "2MB"


class Trainer:
    """A model that may keep so many bytes for its backward pass, whatever the batch."""

    def __init__(self, memory: str) -> None:
        torch.manual_seed(0)
        self.model = actnn.QModule(network(), level="L3", memory=memory)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Take one step and return its loss."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save(self, path: Path) -> None:
        """Write a checkpoint; the session's state holds the place in the noise and all that was learnt of widths."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state | {"session": self.model.session_state()}, path)

    def load(self, path: Path) -> None:
        """Go on where a checkpoint was written."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.model.load_session_state(state["session"])


def main() -> None:
    """Train within a budget, at two sizes of the batch, stop, and go on."""
    smoke = arguments(__doc__).smoke
    train, test = digits(smoke)
    images, labels = train.tensors
    batches = [64] * (4 if smoke else 60) + [48] * (4 if smoke else 20)
    trainer = Trainer(BUDGET)
    for number, size in enumerate(batches):
        chosen = torch.randperm(len(images))[:size]
        loss = trainer.step(images[chosen], labels[chosen])
        if number + 1 == len(batches) or batches[number + 1] != size:
            report = trainer.model.report()
            kept = report.kept_bytes + report.other_bytes
            print(f"batches of {size}: {kept} bytes kept of {report.limit}, {report.average_bits:.2f} bits an element")
    print(f"loss {loss:.3f}, accuracy {accuracy(trainer.model, test):.1%}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        trainer.save(path)
        resumed = Trainer(BUDGET)
        resumed.load(path)
        losses = [other.step(images[:64], labels[:64]) for other in (trainer, resumed) for _ in range(3)]
    print(f"gone on bit for bit: {losses[:3] == losses[3:]}")

    try:
        small = Trainer("100KB")
        # the first steps measure what the model keeps
        for _ in range(4):
            small.step(images[:64], labels[:64])
    except actnn.BudgetError as error:
        print(f"too small a budget: {error}")


if __name__ == "__main__":
    main()
