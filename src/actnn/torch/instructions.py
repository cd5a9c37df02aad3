"""What the instructions of a function tell of a call: by which names it calls, and whether it reads the argument again.

Not tracing but the instructions tell: a branch that depends on data, a flag that is set later, a print are all among
them. What is not known for certain, as a module that an expression computes, is taken for a reader; and of an
interpreter whose instructions are not known here nothing is told. This module needs nothing but the standard library,
so that it can be tried with interpreters that have no torch.
"""

from __future__ import annotations

import dis
import inspect
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

# how the argument of a call is held: by the call alone, or by a variable that is read no more as well
TEMPORARY, VARIABLE = "temporary", "variable"

# later ones let calls borrow what variables hold; without a global lock, and elsewhere, references count otherwise
KNOWN_VERSIONS = ((3, 11), (3, 12), (3, 13))
KNOWN = (
    sys.implementation.name == "cpython"
    and sys.version_info[:2] in KNOWN_VERSIONS
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)

# with these a function sees its variables, or lets somebody see them, without an instruction that reads them
SEEING = frozenset(
    (
        *("locals", "vars", "dir", "eval", "exec", "currentframe", "stack", "f_locals", sys._getframe.__name__),
        *("breakpoint", "set_trace", "post_mortem", "embed", "interact"),
    )
)
LOADING = ("LOAD_FAST", "LOAD_FAST_CHECK")
# what a function calls may also be named by a variable that a function within it reads too
NAMING = (*LOADING, "LOAD_DEREF")
STORING = ("STORE_FAST", "DELETE_FAST", "STORE_FAST_STORE_FAST")
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
ENDING = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
JUMPING = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
# what may lie between the argument of a call and the call
PREPARING = ("PRECALL",)

Instructions = Sequence[dis.Instruction]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one argument in a function.

    ``variable`` holds the argument, None where only the call does. ``path`` is the variable and the attributes by which
    the function names what it calls; where it ``asks`` by ``getattr``, the variable of the object that it asks.
    """

    variable: str | None
    path: tuple[str, ...]
    asks: bool = False

    @property
    def kind(self) -> str:
        """How the argument is held."""
        return TEMPORARY if self.variable is None else VARIABLE


def call_at(code: CodeType, place: int) -> Call | None:
    """Return the call that a function is in, which stands at the instruction of which ``f_lasti`` tells.

    None where the function may read the argument again, or where that is unknown.
    """
    suspended = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if not (KNOWN and code.co_flags & inspect.CO_OPTIMIZED) or code.co_flags & suspended:
        return None
    if SEEING.intersection(code.co_names):
        return None
    instructions = list(dis.get_instructions(code))
    index = max(i for i, instruction in enumerate(instructions) if instruction.offset <= place)
    if (instructions[index].opname, instructions[index].arg) != ("CALL", 1):
        return None
    last = index - 1
    while instructions[last].opname in PREPARING:
        last -= 1
    first = beginning(instructions, last)
    called = None if first is None else called_by(instructions, first - 1)
    if called is None:
        return None
    path, asks = called
    if instructions[last].opname == "CALL":
        return Call(None, path, asks)
    name = name_of(instructions[last])
    if name is None or is_read(instructions, index + 1, name):
        return None
    return Call(name, path, asks)


def called_by(instructions: Instructions, last: int) -> tuple[tuple[str, ...], bool] | None:
    """Return the path by which a function names what it calls, and whether it asks an object by ``getattr``."""
    while instructions[last].opname == "PUSH_NULL":
        last -= 1
    path = path_of(instructions, last)
    if path is not None:
        return path, False
    first = beginning(instructions, last)
    if first is None or (instructions[first].opname, instructions[first].argval) != ("LOAD_GLOBAL", getattr.__name__):
        return None
    owner = name_of(instructions[first + 1])
    return None if owner is None else ((owner,), True)


def name_of(instruction: dis.Instruction) -> str | None:
    """Return the variable that an instruction loads, None where it does anything else."""
    return instruction.argval if instruction.opname in LOADING else None


def beginning(instructions: Instructions, last: int) -> int | None:
    """Return where the expression begins whose value the instruction at ``last`` leaves; None behind a jump."""
    height = 0
    for index in range(last, -1, -1):
        instruction = instructions[index]
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs or instruction.is_jump_target:
            return None
        height += dis.stack_effect(instruction.opcode, instruction.arg)
        if height == 1:
            return index
    return None


def path_of(instructions: Instructions, last: int) -> tuple[str, ...] | None:
    """Return the variable and the attributes by which a function names what it calls; None where it computes that."""
    names: list[str] = []
    for index in range(last, -1, -1):
        instruction = instructions[index]
        if instruction.opname in ATTRIBUTES:
            names.append(instruction.argval)
            continue
        # several variables may be handled by one instruction
        loaded = instruction.argval if instruction.opname.endswith(NAMING) else None
        if isinstance(loaded, tuple):
            loaded = loaded[-1]
        return None if loaded is None else (loaded, *reversed(names))
    return None


def is_read(instructions: Instructions, start: int, name: str) -> bool:
    """Tell whether a function may read a variable after an instruction, before another value is put there."""
    places = {instruction.offset: index for index, instruction in enumerate(instructions)}
    # what no other instruction leads to is run where an exception is caught
    waiting = [start, *set(range(len(instructions))).difference(reached(instructions, places, [0]))]
    seen: set[int] = set()
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        mentions = mentioned(instructions[index], name)
        if mentions == "LOAD":
            return True
        if mentions is None:
            waiting += following(instructions, places, index)
    return False


def reached(instructions: Instructions, places: dict[int, int], waiting: list[int]) -> set[int]:
    """Return all instructions that some lead to."""
    seen: set[int] = set()
    while waiting:
        index = waiting.pop()
        if index not in seen:
            seen.add(index)
            waiting += following(instructions, places, index)
    return seen


def following(instructions: Instructions, places: dict[int, int], index: int) -> Iterator[int]:
    """Yield the instructions that may come after one."""
    instruction = instructions[index]
    if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
        yield places[instruction.argval]
    if instruction.opname not in ENDING and instruction.opname not in JUMPING and index + 1 < len(instructions):
        yield index + 1


def mentioned(instruction: dis.Instruction, name: str) -> str | None:
    """Return what an instruction does with a variable first: LOAD or STORE it; None where it leaves it alone."""
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    if not (instruction.opcode in dis.haslocal and name in names):
        return None
    stores = instruction.opname in STORING or (instruction.opname == "STORE_FAST_LOAD_FAST" and names[0] == name)
    return "STORE" if stores else "LOAD"
