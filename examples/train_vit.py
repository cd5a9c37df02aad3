"""A vision transformer of timm: one line converts it, whatever functions its own code calls."""

import argparse
from collections.abc import Callable

import timm
import torch
from digits import accuracy, digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import actnn
from actnn.torch.memory import KeptBytes


def arguments() -> argparse.Namespace:
    """Read what to train, and for how long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64, help="of a token (default: %(default)s)")
    parser.add_argument("--depth", type=int, default=3, help="blocks of the network (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the images (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="few images and one epoch: only to see that it runs")
    return parser.parse_args()


def vision_transformer(width: int, depth: int) -> nn.Module:
    """Return a transformer for grey images of 32 × 32 pixels: nothing in it knows of actnn."""
    sizes = {"embed_dim": width, "depth": depth, "num_heads": width // 16, "patch_size": 8}
    return timm.create_model("vit_tiny_patch16_224", img_size=32, in_chans=1, num_classes=10, **sizes)


def train_with(convert: Callable[[nn.Module], nn.Module], asked: argparse.Namespace) -> tuple[nn.Module, float, int]:
    """Train a model; return it, its accuracy, and the bytes that autograd kept in the last step."""
    torch.manual_seed(0)
    train, test = digits(asked.smoke)
    model = convert(vision_transformer(asked.width, asked.depth))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for _ in range(1 if asked.smoke else asked.epochs):
        for images, labels in DataLoader(train, batch_size=64, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            with KeptBytes(model) as kept:
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
    return model, accuracy(model, test), kept.total


def main() -> None:
    """Train exactly and converted, and compare what is kept and what is learnt."""
    asked = arguments()
    actnn.set_optimization_level("L3")
    _, exact_accuracy, exact_bytes = train_with(lambda model: model, asked)
    model, own_accuracy, own_bytes = train_with(actnn.QModule, asked)

    print("the first block keeps codes for")
    for row in model.report().rows:
        if row.layer.startswith("blocks.0."):
            print(f"  {row.layer}: {row.kept_bytes} bytes, {row.bits:.2f} bits a value")
    print(f"exact:    {exact_bytes / 2**20:6.2f} MiB kept, accuracy {exact_accuracy:.1%}")
    print(f"actnn L3: {own_bytes / 2**20:6.2f} MiB kept, accuracy {own_accuracy:.1%}")
    print(f"all that autograd keeps takes {exact_bytes / own_bytes:.1f} times less memory")


if __name__ == "__main__":
    main()
