"""The PyTorch front end."""

from actnn.torch.convert import QModule
from actnn.torch.layers import *  # noqa: F403
from actnn.torch.layers import LAYERS

__all__ = ["QModule", *(layer.__name__ for layer in LAYERS)]
