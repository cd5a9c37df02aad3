"""The same three steps in PaddlePaddle: choose a level, convert the model, print it."""

import argparse

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

import actnn.paddle as actnn


def network() -> nn.Layer:
    """Return an ordinary network: nothing in it knows of actnn."""
    return nn.Sequential(
        nn.Conv2D(1, 16, 3, padding=1, bias_attr=False),
        nn.BatchNorm2D(16),
        nn.ReLU(),
        nn.Conv2D(16, 32, 3, stride=2, padding=1, bias_attr=False),
        nn.BatchNorm2D(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2D(2),
        nn.Flatten(),
        nn.Linear(128, 2),
    )


def stripes(count: int) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return images of horizontal and of vertical stripes in noise."""
    numbers = np.random.default_rng(0)
    images = numbers.normal(0, 0.5, (count, 1, 16, 16)).astype("float32")
    labels = np.arange(count) % 2
    images[labels == 0, :, ::2, :] += 1
    images[labels == 1, :, :, ::2] += 1
    return paddle.to_tensor(images), paddle.to_tensor(labels)


def main() -> None:
    """Convert a network, train it, and print what it kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few steps: only to see that it runs")
    smoke = parser.parse_args().smoke
    paddle.seed(0)

    # step 1: configure the optimization level
    actnn.set_optimization_level("L3")
    # step 2: convert the model
    model = actnn.QModule(network())
    # step 3: see that layers are converted
    print(model)

    images, labels = stripes(64)
    optimizer = paddle.optimizer.Momentum(0.05, 0.9, model.parameters())
    for step in range(4 if smoke else 40):
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {float(loss):.3f}")

    print(model.report())
    print(f"activations take {model.report().ratio:.1f} times less memory than in exact training")


if __name__ == "__main__":
    main()
