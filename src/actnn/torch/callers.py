"""How a function holds a tensor that it calls a module with: whether any of its instructions can read that again.

Not tracing but the instructions tell: a branch that depends on data, a flag that is set later, a print are all among
them. What is not known for certain, as a module that an expression names, is taken for a reader.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from torch import nn

# how the argument of a call is held: by the call alone, or by a variable that is read no more as well
TEMPORARY, VARIABLE = "temporary", "variable"

# with these a function sees its variables without an instruction that reads them
SEEING = frozenset(
    ("locals", "vars", "dir", "eval", "exec", "currentframe", "stack", "breakpoint", sys._getframe.__name__)
)
LOADING = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
ENDING = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
JUMPING = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")
# what may lie between the argument of a call and the call
PREPARING = ("PRECALL",)


def held_by(frame: FrameType, called: Any, x: Any) -> str | None:
    """Return how a function that runs holds ``x``, the one argument of its call of a module.

    None where it may read that again, or where that is unknown.
    """
    code, place = frame.f_code, frame.f_lasti
    flags = code.co_flags
    suspended = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if not flags & inspect.CO_OPTIMIZED or flags & suspended or SEEING.intersection(code.co_names):
        return None
    instructions = list(dis.get_instructions(code))
    index = max(i for i, instruction in enumerate(instructions) if instruction.offset <= place)
    call = instructions[index]
    if call.opname != "CALL" or call.arg != 1:
        return None
    last = index - 1
    while instructions[last].opname in PREPARING:
        last -= 1
    argument = instructions[last]
    first = beginning(instructions, last)
    if first is None or not calls(frame, instructions, first - 1, called):
        return None
    if argument.opname == "CALL":
        return TEMPORARY
    name = name_of(argument)
    if name is None or variables_of(frame, (name,))[0] is not x or is_read(instructions, index + 1, name):
        return None
    return VARIABLE


def calls(frame: FrameType, instructions: Sequence[dis.Instruction], last: int, called: Any) -> bool:
    """Tell whether a function calls a module by its name, or by ``getattr`` of a module that holds it."""
    path = path_of(instructions, last)
    if path is not None:
        return found(variables_of(frame, path[:1])[0], path[1:]) is called
    first = beginning(instructions, last)
    if first is None or (instructions[first].opname, instructions[first].argval) != ("LOAD_GLOBAL", getattr.__name__):
        return False
    (owner,) = variables_of(frame, (name_of(instructions[first + 1]),))
    own = frame.f_globals.get(getattr.__name__, getattr) is getattr
    return own and isinstance(owner, nn.Module) and any(child is called for child in owner.children())


def name_of(instruction: dis.Instruction) -> str | None:
    """Return the variable that an instruction loads, None where it does anything else."""
    return instruction.argval if instruction.opname in LOADING else None


def beginning(instructions: Sequence[dis.Instruction], last: int) -> int | None:
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


def path_of(instructions: Sequence[dis.Instruction], last: int) -> list[str] | None:
    """Return the variable and the attributes by which a function names what it calls; None where it computes that."""
    names: list[str] = []
    for index in range(last, -1, -1):
        instruction = instructions[index]
        if instruction.opname == "PUSH_NULL" and not names:
            continue
        if instruction.opname in ATTRIBUTES:
            names.append(instruction.argval)
            continue
        # several variables may be handled by one instruction
        loaded = instruction.argval if instruction.opname.endswith(LOADING) else None
        if isinstance(loaded, tuple):
            loaded = loaded[-1]
        return None if loaded is None else [loaded, *reversed(names)]
    return None


def variables_of(frame: FrameType, names: Sequence[str | None]) -> list[Any]:
    """Return some variables of a function that runs."""
    variables = frame.f_locals
    values = [None if name is None else variables.get(name) for name in names]
    if isinstance(variables, dict):
        # a copy, which would hold every tensor in it as long as the function runs, and which nobody else has seen
        variables.clear()
    return values


def found(owner: Any, names: Sequence[str]) -> Any:
    """Return what a path of attributes leads to, None where it is not a path of plain modules."""
    for name in names:
        if not isinstance(owner, nn.Module):
            return None
        owner = dict(owner.named_children()).get(name)
    return owner


def is_read(instructions: Sequence[dis.Instruction], start: int, name: str) -> bool:
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


def reached(instructions: Sequence[dis.Instruction], places: dict[int, int], waiting: list[int]) -> set[int]:
    """Return all instructions that some lead to."""
    seen: set[int] = set()
    while waiting:
        index = waiting.pop()
        if index not in seen:
            seen.add(index)
            waiting += following(instructions, places, index)
    return seen


def following(instructions: Sequence[dis.Instruction], places: dict[int, int], index: int) -> Iterator[int]:
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
    parts = ("STORE_FAST", "DELETE_FAST", "STORE_FAST_STORE_FAST")
    stores = instruction.opname in parts or (instruction.opname == "STORE_FAST_LOAD_FAST" and names[0] == name)
    return "STORE" if stores else "LOAD"
