"""One line converts a model: train it as before, and see what every layer keeps for its backward pass."""

import torch
from digits import accuracy, arguments, digits, network
from torch.nn import functional as F
from torch.utils.data import DataLoader

import actnn


def main() -> None:
    """Train a converted network, print what it kept, and give the plain one back."""
    smoke = arguments(__doc__).smoke
    torch.manual_seed(0)
    train, test = digits(smoke)

    actnn.set_optimization_level("L3")
    model = actnn.QModule(network())
    print(model)  # QConv2d, QBatchNorm2d, …: the same parameters as before

    # nothing below knows of actnn
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for epoch in range(1 if smoke else 4):
        for images, labels in DataLoader(train, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss:.3f}, accuracy {accuracy(model, test):.1%}")

    report = model.report()
    print(report)  # the bytes of every layer, exact and as kept, and who else reads its code
    print(f"activations take {report.ratio:.1f} times less memory than in exact training")

    plain = model.restore()
    print(f"the plain model again: {type(plain).__name__} of {type(plain[0]).__name__}, …")


if __name__ == "__main__":
    main()
