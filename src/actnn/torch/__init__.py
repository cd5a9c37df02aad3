"""The PyTorch front end."""

from actnn.torch.checkpoint import load, save
from actnn.torch.convert import QModule
from actnn.torch.data import DataLoader
from actnn.torch.door.registry import register
from actnn.torch.layers import *  # noqa: F403
from actnn.torch.layers import LAYERS
from actnn.torch.verify import verify

__all__ = ["DataLoader", "QModule", *(layer.__name__ for layer in LAYERS), "load", "register", "save", "verify"]
