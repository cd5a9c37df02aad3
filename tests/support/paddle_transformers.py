"""Small transformers as Paddle's users write them: one in functional calls, one of the library's own encoder layers."""

from __future__ import annotations

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

WIDTH, HEADS, CLASSES = 64, 4, 10
WORDS, LENGTH = 100, 50


class Block(nn.Layer):
    """Attention written out in products of matrices, and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        shape = [batch, tokens, 3, HEADS, WIDTH // HEADS]
        query, key, value = self.qkv(self.before(x)).reshape(shape).transpose([2, 0, 3, 1, 4]).unbind(0)
        weights = F.softmax(paddle.matmul(query, key, transpose_y=True) * (WIDTH // HEADS) ** -0.5)
        attended = (weights @ value).transpose([0, 2, 1, 3]).reshape(x.shape)
        x = x + self.out(attended)
        normed = self.between(x)
        return x + self.down(F.gelu(self.up(normed)) * F.sigmoid(self.gate(normed)))


class VisionTransformer(nn.Layer):
    """Patches of images through blocks."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2D(3, WIDTH, 4, 4)
        self.blocks = nn.LayerList([Block() for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose([0, 2, 1])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class TextEncoder(nn.Layer):
    """Words through the encoder of the library."""

    def __init__(self, blocks: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=dropout, activation="gelu")
        self.encoder, self.head = nn.TransformerEncoder(layer, blocks), nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        # the last words are padding
        seen = (paddle.arange(words.shape[1]) < LENGTH - 5).reshape([1, 1, 1, -1])
        x = self.words(words) + self.places(paddle.arange(words.shape[1]))
        return self.head(self.encoder(x, seen).mean(1))
