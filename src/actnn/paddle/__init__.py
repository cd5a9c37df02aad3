"""The PaddlePaddle front end: ``import actnn.paddle as actnn`` has all of torch's but ``compile``."""

from actnn.errors import (
    ActnnError,
    BudgetError,
    ConfigError,
    DemandError,
    FormatError,
    SessionError,
    ShapeError,
    SwapError,
    UnsupportedError,
)
from actnn.model.usage import compute_tensor_bytes
from actnn.paddle.checkpoint import load, save
from actnn.paddle.convert import QModule
from actnn.paddle.data import DataLoader
from actnn.paddle.door.written import register
from actnn.paddle.functional import FUNCTIONS
from actnn.paddle.layers import *  # noqa: F403
from actnn.paddle.layers import ALIASES, LAYERS
from actnn.paddle.memory import get_memory_usage
from actnn.paddle.verify import verify
from actnn.settings import QBNScheme, QScheme, config, set_optimization_level

globals().update(ALIASES | FUNCTIONS)

__all__ = [
    "ActnnError",
    "BudgetError",
    "ConfigError",
    "DataLoader",
    "DemandError",
    "FormatError",
    "QBNScheme",
    "QModule",
    "QScheme",
    "SessionError",
    "ShapeError",
    "SwapError",
    "UnsupportedError",
    "compute_tensor_bytes",
    "config",
    "get_memory_usage",
    "load",
    "register",
    "save",
    "set_optimization_level",
    "verify",
    *(layer.__name__ for layer in LAYERS),
    *ALIASES,
    *FUNCTIONS,
]
