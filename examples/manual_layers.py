"""A model made of compressed layers by hand, the first of them with a width of its own."""

import torch
from digits import arguments, digits
from torch import Tensor, nn
from torch.nn import functional as F

import actnn

NORMAL, CAREFUL = 0, 1


class Residual(nn.Module):
    """Two convolutions and a way around them; layers take what torch's take, and ``group``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = actnn.QConv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = actnn.QBatchNorm2d(channels)
        self.relu = actnn.QReLU(inplace=True)
        self.second = actnn.QConv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = actnn.QBatchNorm2d(channels)
        self.last_relu = actnn.QReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both ways."""
        y = self.relu(self.first_norm(self.first(x)))
        return self.last_relu(self.second_norm(self.second(y)) + x)


class Network(nn.Module):
    """A classifier whose stem keeps its input at another width than all other layers."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = actnn.QConv2d(1, 16, 3, padding=1, group=CAREFUL)
        self.pool = actnn.QMaxPool2d(2)
        self.blocks = nn.Sequential(Residual(16), Residual(16))
        # a plain layer stays exact until QModule converts it as well
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for every class."""
        x = self.blocks(self.pool(self.stem(x)))
        return self.head(x.mean((2, 3)))


def main() -> None:
    """Train for some steps and print the width of every layer."""
    smoke = arguments(__doc__).smoke
    torch.manual_seed(0)
    images, labels = digits(smoke)[0][:64]

    actnn.set_optimization_level("L2")
    # one entry for each group: 2 bits for most layers, 8 for the careful ones
    actnn.config.activation_compression_bits = [2, 8]

    # wrapped, layers share codes and appear in one report; the head stays exact
    model = actnn.QModule(Network(), exact=["head"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(3 if smoke else 30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.3f}")

    print(model.report())
    widths = {row.layer: row.bits for row in model.report().rows if row.bits is not None}
    print(f"the stem keeps {widths['stem']:.0f} bits an element, the blocks fewer; one code serves norm, ReLU and conv")


if __name__ == "__main__":
    main()
