"""What larger batches make of training on many devices: computed from measured batches, and marked as that."""

from __future__ import annotations

from collections.abc import Sequence

from actnn.measuring.records import Record

# parameters of models whose largest batch is recorded, 4 bytes each
PARAMETERS = {"resnet50": 25_557_032}
BYTES = 4
# the training images of ImageNet, and the devices that share them
IMAGES, DEVICES = 1_281_167, 8
HEADING = ["model, image, memory of a device", "training", "batch of a device"]
HEADING += [f"steps of an epoch on {DEVICES} devices (computed)", "sent by each in an epoch (computed)"]


def traffic(parameters: int, devices: int) -> float:
    """Return the bytes that each device sends in a step: a ring passes on all parts but one, twice."""
    return 2 * (devices - 1) / devices * BYTES * parameters


def steps_of_an_epoch(batch: int, devices: int) -> int:
    """Return how many steps see every image once."""
    return -(-IMAGES // (batch * devices))


def cells(record: Record) -> list[str]:
    """Return what the largest batch of one contestant makes of an epoch."""
    steps = steps_of_an_epoch(record["largest"], DEVICES)
    sent = steps * traffic(PARAMETERS[record["model"]], DEVICES)
    return [str(record["largest"]), f"{steps}", f"{sent / 1e9:.0f} GB"]


def known(records: Sequence[Record]) -> list[Record]:
    """Return the records of models whose parameters are known."""
    return [record for record in records if record["model"] in PARAMETERS and record["largest"]]
