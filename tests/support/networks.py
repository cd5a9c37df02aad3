"""Small networks of every front end: parts by name, joined by functions that files of models can name."""

from __future__ import annotations

from frameworks import Array, Framework, Model, numbers

CLASSES = 5


def residual_block(framework: Framework, inputs: int, outputs: int) -> Model:
    """Return two convolutions beside a shortcut, joined in place as usual implementations do."""
    layer = framework.layer
    return framework.wired(
        join_residual,
        conv1=layer("Conv2d", inputs, outputs, 3, padding=1, bias=False),
        bn1=layer("BatchNorm2d", outputs),
        relu=layer("ReLU", inplace=True),
        conv2=layer("Conv2d", outputs, outputs, 3, padding=1, bias=False),
        bn2=layer("BatchNorm2d", outputs),
        shortcut=layer("Conv2d", inputs, outputs, 1),
    )


def join_residual(block: Model, x):
    out = block.relu(block.bn1(block.conv1(x)))
    out = block.bn2(block.conv2(out))
    out = out.add_(block.shortcut(x))
    return block.relu(out)


def small_network(framework: Framework) -> Model:
    """Return a little of everything: a residual block, both kinds of pooling, a classifier."""
    layer = framework.layer
    stem = framework.sequential(layer("Conv2d", 3, 8, 3, padding=1), layer("BatchNorm2d", 8), layer("ReLU"))
    network = framework.wired(
        join_small,
        stem=stem,
        pool=layer("MaxPool2d", 2),
        block=residual_block(framework, 8, 12),
        average=layer("AvgPool2d", 4),
        head=layer("Linear", 12 * 4, CLASSES),
    )
    return framework.initialised(network)


def join_small(network: Model, x):
    x = network.block(network.pool(network.stem(x)))
    return network.head(network.average(x).flatten(1))


def everything(framework: Framework) -> Model:
    """Return a network with every kind of layer that draws random numbers or keeps statistics."""
    layer = framework.layer
    network = framework.sequential(
        layer("Conv2d", 3, 6, 3, padding=1),
        layer("BatchNorm2d", 6),
        layer("ReLU", inplace=True),
        layer("Dropout", 0.2),
        layer("MaxPool2d", 2),
        residual_block(framework, 6, 8),
        layer("ConvTranspose2d", 8, 4, 2, stride=2),
        layer("LeakyReLU", 0.1),
        layer("AvgPool2d", 4),
        layer("Flatten"),
        layer("Linear", 64, 20),
        layer("BatchNorm1d", 20),
        layer("ReLU6"),
        layer("Linear", 20, CLASSES),
    )
    return framework.initialised(network, 8)


def images(batch: int = 8) -> Array:
    """Return inputs for these networks."""
    return numbers((batch, 3, 16, 16), 7)
