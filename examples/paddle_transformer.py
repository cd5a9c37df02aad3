"""A transformer in PaddlePaddle: its layers and the functions that its own code calls keep codes."""

import argparse

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

import actnn.paddle as actnn

WORDS, LENGTH, WIDTH, HEADS = 50, 40, 64, 4


class Gated(nn.Layer):
    """A layer of one's own: nothing in it knows of actnn."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.gate, self.down = nn.Linear(WIDTH, 128), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` and a gated function of it."""
        normed = self.norm(x)
        return x + self.down(F.silu(self.up(normed)) * self.gate(normed))


class Reader(nn.Layer):
    """Tells whether a word occurs twice in a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu")
        self.gated, self.head = Gated(), nn.Linear(WIDTH, 2)

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of no and yes."""
        return self.head(self.gated(self.encoder(self.words(words))).mean(1))


def sentences(count: int) -> tuple[Tensor, Tensor]:
    """Return sentences in which no word, or the first one, comes again."""
    words = paddle.stack([paddle.randperm(WORDS)[:LENGTH] for _ in range(count)])
    labels = paddle.arange(count) % 2
    words[1::2, -1] = words[1::2, 0]
    return words, labels


def main() -> None:
    """Convert a transformer, train it, and print what it kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few steps: only to see that it runs")
    smoke = parser.parse_args().smoke
    paddle.seed(0)

    model = actnn.QModule(Reader(), level="L3")
    words, labels = sentences(64)
    optimizer = paddle.optimizer.Adam(3e-3, parameters=model.parameters())
    for step in range(4 if smoke else 60):
        loss = F.cross_entropy(model(words), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {float(loss):.3f}")

    # a site of a function is named by the layer that called it
    print(model.report())
    print(f"activations take {model.report().ratio:.1f} times less memory than in exact training")


if __name__ == "__main__":
    main()
