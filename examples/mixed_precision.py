"""Codes and mixed precision together: autocast halves what exact training keeps, codes keep far less than that."""

import torch
from digits import arguments, digits, network
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import actnn
from actnn.torch.memory import KeptBytes


def train_with(model: nn.Module, bf16: bool, smoke: bool) -> tuple[float, int]:
    """Train for an epoch; return the last loss, and the bytes that autograd kept in the last step."""
    torch.manual_seed(0)
    train, _ = digits(smoke)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for images, labels in DataLoader(train, batch_size=64, shuffle=True, drop_last=True):
        optimizer.zero_grad()
        with KeptBytes(model) as kept, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(images).float(), labels)
        # backward runs in the types that forward used; bfloat16 needs no loss scaler
        loss.backward()
        optimizer.step()
    return loss.item(), kept.total


def main() -> None:
    """Train exactly and compressed, in float32 and in bfloat16, and compare what is kept."""
    smoke = arguments(__doc__).smoke
    actnn.set_optimization_level("L3")
    print(f"{'':<12}{'float32':>24}{'bfloat16':>24}")
    for name, convert in (("exact", lambda model: model), ("actnn L3", actnn.QModule)):
        cells = []
        for bf16 in (False, True):
            torch.manual_seed(0)
            loss, kept = train_with(convert(network()), bf16, smoke)
            cells.append(f"{kept / 2**20:.2f} MiB, loss {loss:.3f}")
        print(f"{name:<12}{cells[0]:>24}{cells[1]:>24}")


if __name__ == "__main__":
    main()
