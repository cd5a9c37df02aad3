"""What is trained in a benchmark, and who takes part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from actnn.settings import LEVELS
from actnn.workloads import language
from actnn.workloads.peers import PEERS

EXACT, CHECKPOINT, SWAP = "exact", "checkpoint", "swap"
# exact training where the C library keeps freed blocks, as a conversion tells it to
KEPT_HEAP = "exact-kept-heap"
# exact training whose sums are taken in another order
FLOOR = "floor"
CONTESTANTS = (EXACT, KEPT_HEAP, CHECKPOINT, *LEVELS, *PEERS)
# levels that change how their whole process allocates memory: nobody can be timed fairly beside them
OF_WHOLE_PROCESS = tuple(
    name for name, knobs in LEVELS.items() if knobs.get("arena") or knobs.get("empty_cache_threshold") is not None
)

# classes and image size of the paper's tables; all other models classify ImageNet's
CLASSES = {"fcn_hrnet_w48": 19}
SIZES = {"fcn_hrnet_w48": (512, 1024)}
IMAGENET_CLASSES, IMAGENET_SIZE = 1000, (224, 224)


@dataclass(frozen=True)
class Task:
    """A training step: framework, model, batch, and how codes are made."""

    model: str
    batch: int
    height: int
    width: int
    framework: str = "torch"
    bits: float | None = None
    threads: int = 1
    channels_last: bool = False
    rounding: str = "dither"
    share_codes: bool = True
    seed: int = 0
    rate: float = 0.01
    label_count: int | None = None
    optimizer: str = "sgd"

    @property
    def classes(self) -> int:
        """How many classes the model tells apart."""
        return self.label_count or CLASSES.get(self.model, IMAGENET_CLASSES)

    @property
    def size(self) -> int | str:
        """The size of an image, or the length of a text, as records have it."""
        if (model := language.find(self.model)) is not None:
            return f"{model.tokens} tokens"
        return self.height if self.height == self.width else f"{self.height}x{self.width}"

    @property
    def settings(self) -> dict[str, Any]:
        """The fields as plain data, from which a child makes the same task."""
        return asdict(self)

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Task:
        """Return the task of some settings."""
        return Task(**settings)

    def run_of(self, contestant: str) -> dict[str, Any]:
        """Return the settings of the run of one contestant, which its record repeats."""
        figures: dict[str, Any] = {"contestant": contestant, "framework": self.framework, "model": self.model}
        figures |= {"batch": self.batch, "size": self.size, "bits": self.width_of(contestant), "threads": self.threads}
        changed = {field.name: getattr(self, field.name) for field in fields(self) if field.name in VARIANTS}
        return figures | {name: value for name, value in changed.items() if value != VARIANTS[name]}

    def width_of(self, contestant: str) -> float | None:
        """Return the average width of a contestant's codes, None where it makes none; a peer has its own."""
        if contestant in PEERS:
            return PEERS[contestant].bits
        if not LEVELS.get(contestant, {"compress_activation": False}).get("compress_activation", True):
            return None
        return self.bits or LEVELS[contestant]["activation_compression_bits"][0]


CHANGES = ("channels_last", "rounding", "share_codes", "optimizer")
VARIANTS = {field.name: field.default for field in fields(Task) if field.name in CHANGES}


def words_of(run: Mapping[str, Any]) -> str:
    """Describe the run of a task and a contestant for people."""
    examples = "images" if language.find(run["model"]) is None else "texts"
    return f"{run['model']}, {run['batch']} {examples} of {run['size']}, {run['contestant']}"
