"""A transformer of Hugging Face learns to tell praise from blame: one line converts it, pretrained or not."""

import argparse
import random
from itertools import product

import torch
import transformers
from torch import Tensor, nn

import actnn
from actnn.torch.memory import KeptBytes

THINGS = ("film", "book", "song", "meal", "story", "game", "place", "play")
GOOD, BAD = ("good", "great", "lovely", "clever"), ("bad", "awful", "dull", "silly")
HEDGES = ("was", "was not", "was really", "was really not", "seems", "never seems", "is", "is not")
WORDS = ("after", "the", "was", "is", "seems", "not", "never", "really", *THINGS, *GOOD, *BAD)


def arguments() -> argparse.Namespace:
    """Read which model to train, and for how long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pretrained", help="name or folder of a model (default: a small one with random weights)")
    parser.add_argument("--layers", type=int, default=2, help="of the small model (default: %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="of the small model (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="sentences in a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=120, help="default: %(default)s")
    parser.add_argument("--rate", type=float, help="learning rate (default: 1e-3, and 3e-5 for a pretrained model)")
    parser.add_argument("--smoke", action="store_true", help="few steps: only to see that it runs")
    return parser.parse_args()


def sentences() -> list[tuple[str, int]]:
    """Return sentences, and 1 for praise: what is not bad is good, so no single word tells."""
    found = []
    for one, other, hedge, judgement in product(THINGS, THINGS, HEDGES, GOOD + BAD):
        denied = "not" in hedge or "never" in hedge
        found.append((f"after the {one} the {other} {hedge} {judgement}", int((judgement in GOOD) != denied)))
    random.Random(0).shuffle(found)
    return found


def words_as_tokens(texts: list[str]) -> dict[str, Tensor]:
    """Return texts as numbers, one a word; 0 fills short ones up."""
    numbers = [torch.tensor([1 + WORDS.index(word) for word in text.split()]) for text in texts]
    tokens = nn.utils.rnn.pad_sequence(numbers, batch_first=True)
    return {"input_ids": tokens, "attention_mask": (tokens > 0).long()}


def small_model(layers: int, width: int) -> nn.Module:
    """Return a BERT of few layers with random weights, so that nothing is downloaded."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    configuration = transformers.BertConfig(
        vocab_size=1 + len(WORDS),
        num_attention_heads=max(1, width // 32),
        max_position_embeddings=64,
        pad_token_id=0,
        **sizes,
    )
    return transformers.BertForSequenceClassification(configuration)


def main() -> None:
    """Train a converted model, and print what it kept beside what exact training would keep."""
    asked = arguments()
    torch.manual_seed(0)
    if asked.pretrained is None:
        model, tokens_of, rate = small_model(asked.layers, asked.width), words_as_tokens, 1e-3
    else:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(asked.pretrained, num_labels=2)
        tokenizer, rate = transformers.AutoTokenizer.from_pretrained(asked.pretrained), 3e-5

        def tokens_of(texts: list[str]) -> dict[str, Tensor]:
            return dict(tokenizer(texts, padding=True, return_tensors="pt"))

    model = actnn.QModule(model.train(), level="L3")

    # nothing below knows of actnn, but for what is counted
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.rate or rate)
    data, steps = sentences(), 5 if asked.smoke else asked.steps
    for step in range(steps):
        places = range(step * asked.batch, (step + 1) * asked.batch)
        texts, labels = zip(*(data[place % len(data)] for place in places), strict=True)
        optimizer.zero_grad()
        with KeptBytes(model) as kept:
            loss = model(**tokens_of(list(texts)), labels=torch.tensor(labels)).loss
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")

    report = model.report()
    print(f"codes and masks take {report.kept_bytes} bytes, where exact training would keep {report.exact_bytes}")
    print(f"all that autograd kept, with what has no code: {kept.total} bytes")
    print(f"activations take {report.ratio:.1f} times less memory than in exact training")


if __name__ == "__main__":
    main()
