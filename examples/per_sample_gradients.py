"""Samples with large gradients get more bits: say which samples a batch holds, and the noise falls at equal memory."""

import torch
from digits import arguments, digits, network
from torch import Tensor, nn
from torch.nn import functional as F

import actnn


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of all weights as one vector."""
    model.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def noise(model: nn.Module, images: Tensor, labels: Tensor, draws: int) -> float:
    """Return the variance that codes add to the gradient, relative to its square: every forward draws other noise."""
    # shares of layers settle first
    for _ in range(4):
        gradient(model, images, labels)
    drawn = torch.stack([gradient(model, images, labels) for _ in range(draws)])
    return float(drawn.var(0).sum() / drawn.mean(0).square().sum())


def main() -> None:
    """Train with known samples, then measure the noise with and without knowing them."""
    smoke = arguments(__doc__).smoke
    torch.manual_seed(0)
    train, _ = digits(smoke)

    actnn.set_optimization_level("L3")
    model = actnn.QModule(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    # torch's loader with the same arguments; it also says where in the data set the samples of a batch lie
    loader = actnn.DataLoader(train, batch_size=64, shuffle=True)
    for epoch in range(1 if smoke else 6):
        for indices, (images, labels) in loader:
            model.set_samples(indices)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss:.3f}")

    indices = torch.arange(64)
    images, labels = train[indices]
    draws = 4 if smoke else 24
    model.set_samples(indices)
    known = noise(model, images, labels, draws)
    bits = model.report().average_bits
    model.set_samples(None)
    unknown = noise(model, images, labels, draws)
    print(f"noise of the gradient at {bits:.2f} bits on average, relative to the squared gradient:")
    print(f"  samples unknown: {unknown:.4f}")
    print(f"  samples known:   {known:.4f}")


if __name__ == "__main__":
    main()
