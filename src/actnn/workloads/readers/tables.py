"""Labelled texts in tables: ``train.tsv`` and ``test.tsv`` with lines ``text<tab>label``, as words of a vocabulary.

A first line whose label is no number where all others are is a heading.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from actnn.workloads.datasets import DataError, DataSet, Part

LEARN, TESTS = "train.tsv", ("test.tsv", "dev.tsv", "valid.tsv", "val.tsv")
# of padding and of words that are rarer than all in the vocabulary
PADDING, UNKNOWN = 0, 1
MOST_WORDS = 8192

Rows = list[tuple[str, str]]
Tokenizer = Callable[[list[str]], list[list[int]]]


def text_table(folder: Path, length: int, tokenizer: Tokenizer | None = None) -> DataSet:
    """Return the set of a folder, texts cut or padded to so many words.

    Words are numbered by the tokenizer, or else by how frequent they are.
    """
    import torch

    test = next((folder / name for name in TESTS if (folder / name).is_file()), None)
    if test is None or not (folder / LEARN).is_file():
        raise DataError(f"{folder} holds no table: expected {LEARN} beside one of {', '.join(TESTS)}.")
    parts = [rows_of(folder / LEARN), rows_of(test)]
    names = sorted({label for part in parts for _, label in part})
    words = vocabulary(text for text, _ in parts[0])
    tokenizer = tokenizer or (lambda texts: [numbered(text, words, length) for text in texts])
    train, held = (
        Part(
            torch.tensor(tokenizer([text for text, _ in part])),
            torch.tensor([names.index(label) for _, label in part]),
        )
        for part in parts
    )
    return DataSet(train, held, len(names))


def rows_of(path: Path) -> Rows:
    """Return the texts and labels of a table."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [line for line in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"the table {path} cannot be read: {problem}.") from problem
    for number, row in enumerate(rows, start=1):
        if len(row) != 2:
            raise DataError(f"line {number} of {path} has {len(row)} columns: expected a text, a tab and a label.")
    found = [(text, label) for text, label in rows]
    if len(found) > 1 and not found[0][1].isdecimal() and all(label.isdecimal() for _, label in found[1:]):
        found = found[1:]
    if not found:
        raise DataError(f"the table {path} is empty: expected lines of a text, a tab and a label.")
    return found


def vocabulary(texts: Iterable[str]) -> dict[str, int]:
    """Return the numbers of the most frequent words."""
    counts = Counter(word for text in texts for word in text.lower().split())
    kept = sorted(counts, key=lambda word: (-counts[word], word))[: MOST_WORDS - 2]
    return {word: number for number, word in enumerate(kept, start=2)}


def numbered(text: str, words: dict[str, int], length: int) -> list[int]:
    """Return the words of a text as numbers."""
    found = [words.get(word, UNKNOWN) for word in text.lower().split()][:length]
    return found + [PADDING] * (length - len(found))
