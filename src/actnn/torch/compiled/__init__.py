"""Compiled training: torch.compile with codes in the place of what the forward saves for the backward."""

from actnn.torch.compiled.model import Compiled, compile
from actnn.torch.compiled.report import CompiledReport, GraphReport, Saved

__all__ = ["Compiled", "CompiledReport", "GraphReport", "Saved", "compile"]
