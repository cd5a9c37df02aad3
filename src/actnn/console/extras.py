"""Packages that some commands need beyond a plain install, and the extras that bring them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from actnn.errors import UnsupportedError

EXTRAS = {
    "torch": "torch",
    "sklearn": "demo",
    "rich": "demo",
    "matplotlib": "plots",
    "PIL": "train",
    "tensorboard": "tensorboard",
    "torchvision": "models",
    "timm": "models",
    "transformers": "models",
    "torchmetrics": "tasks",
    "pycocotools": "tasks",
}


def require(who: str, modules: Iterable[str]) -> None:
    """Raise an error that says what to install unless all modules are there."""
    missing = sorted({EXTRAS[module] for module in modules if find_spec(module) is None})
    if missing:
        raise UnsupportedError(
            f"{who} needs more packages than are installed: pip install 'actnn[{','.join(missing)}]'"
        )
