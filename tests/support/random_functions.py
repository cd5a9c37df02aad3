"""Random functions that call a module, and read variables afterwards which ``instructions`` says are read no more.

Only the standard library is used, so that every interpreter can run this:
``python random_functions.py instructions.py SEED COUNT`` prints how many calls let their argument go.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from contextlib import contextmanager, suppress
from functools import cache

NAMES = ("a", "b", "c")
# deeper functions say nothing new
DEEPEST = 3


class Failure(Exception):
    """What calls raise now and then."""


class Value:
    """A value that nobody reads once it was let go."""

    let_go = False


class World:
    """What a random function calls."""

    def __init__(self, seed, call_at):
        self.random, self.call_at, self.released, self.turns = random.Random(seed), call_at, 0, 0

    def new(self):
        return Value()

    def flip(self):
        self.turns += 1
        return self.turns < 60 and self.random.random() < 0.5

    def fail(self):
        if self.random.random() < 0.15:
            raise Failure

    def read(self, value):
        if isinstance(value, Value) and value.let_go:
            raise AssertionError("a value was read that was let go")
        self.fail()
        return Value()

    def call(self, value):
        frame = sys._getframe(1)
        found = self.call_at(frame.f_code, frame.f_lasti)
        if found is not None and isinstance(value, Value):
            if found.path != ("self", "call"):
                raise AssertionError(f"a call goes by another name: {found}")
            value.let_go = True
            self.released += 1
        self.fail()
        return Value()

    def several(self):
        return (Value() for _ in range(self.random.randrange(3)))

    @contextmanager
    def forgiving(self):
        with suppress(Failure):
            yield


def statements(source, depth, loop):
    """Return the lines of a random body."""
    lines = []
    for _ in range(source.randrange(1, 5)):
        lines += statement(source, depth, loop)
    return lines


def statement(source, depth, loop):
    """Return the lines of a random statement."""
    one, two = source.choice(NAMES), source.choice(NAMES)
    simple = [
        f"{one} = self.call({two})",
        f"{one} = self.call({one})",
        f"self.call({one})",
        f"{one} = self.read({two})",
        f"{one} = self.call(self.read({two}))",
        f"{one} = self.new()",
        f"{one}, {two} = self.new(), self.call({one})",
        f"{one} = [self.call({two}) for {two} in self.several()]",
        f"{one} = [self.read({two}) for _ in self.several()]",
        f"{one} = {{1: self.call({two}), 2: self.new()}}[1]",
        f"{one} = self.call({two}) if self.flip() else self.read({two})",
        f"{one} = self.flip() and self.call({two}) or self.new()",
        f"self.call({two}).done = self.read({one})",
        f"if self.flip(): return self.read({one})",
        f"del {one}; {one} = self.new()",
        f"{one} = self.call({two} := self.new())",
    ]
    if loop:
        simple += ["if self.flip(): continue", "if self.flip(): break"]
    if depth == DEEPEST or source.random() < 0.5:
        return [source.choice(simple)]
    bodies = [["    " + line for line in statements(source, depth + 1, loop)] for _ in range(3)]
    inner = ["    " + line for line in statements(source, depth + 1, True)]
    return source.choice(
        [
            ["if self.flip():", *bodies[0], "else:", *bodies[1]],
            ["while self.flip():", *inner],
            [f"for {one} in self.several():", *inner],
            ["try:", *bodies[0], "except Failure:", *bodies[1]],
            ["try:", *bodies[0], "except Failure as failure:", *bodies[1], "else:", *bodies[2]],
            ["try:", *bodies[0], "finally:", *bodies[1]],
            ["with self.forgiving():", *bodies[0]],
            ["match self.flip():", "    case True:", *("    " + line for line in bodies[0])],
        ]
    )


def function(seed):
    """Return a random function, and its source."""
    source = random.Random(seed)
    body = statements(source, 0, False)
    text = "\n".join(
        ["def function(self):", "    a, b, c = self.new(), self.new(), self.new()", *("    " + line for line in body)]
    )
    space = {"Failure": Failure}
    exec(text, space)
    return space["function"], text


def tried(call_at, seed, count):
    """Run random functions; return how many calls let their argument go."""
    released = 0
    for number in range(seed, seed + count):
        made, text = function(number)
        told = cache(call_at)
        for run in range(8):
            world = World(run, told)
            try:
                made(world)
            except (Failure, UnboundLocalError):
                pass
            except AssertionError as error:
                raise AssertionError(f"{error} by\n{text}") from error
            released += world.released
    return released


def loaded(path):
    """Return the module of a file."""
    spec = importlib.util.spec_from_file_location("instructions", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["instructions"] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.stdout.write(str(tried(loaded(sys.argv[1]).call_at, int(sys.argv[2]), int(sys.argv[3]))))
