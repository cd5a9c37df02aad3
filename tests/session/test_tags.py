"""Tags are found by address and form, and go with the memory of their tensors."""

from dataclasses import dataclass, field

import pytest

from actnn.session.tags import Tags


class Memory:
    """What a tensor lies in."""


@dataclass
class FakeTensor:
    """A tensor at an address, in some form and version."""

    form: str
    pointer: int = 8
    version: int = 0
    memory: Memory = field(default_factory=Memory)


class FakeTensors:
    """What tags ask of tensors; forms that begin alike hold the same elements."""

    def pointer(self, x):
        return x.pointer

    def version(self, x):
        return x.version

    def memory(self, x):
        return x.memory

    def lies_in(self, x, memory):
        return memory is not None and x.memory is memory

    def same_elements(self, form, other):
        return form[0] == other[0]


TENSORS = FakeTensors()


@pytest.fixture
def tags() -> Tags:
    return Tags()


def test_a_tensor_finds_its_tag_again(tags):
    x = FakeTensor("a")
    assert tags.find(TENSORS, x, x.form) is None
    tag = tags.current(TENSORS, x, x.form)
    assert tags.current(TENSORS, x, x.form) is tags.find(TENSORS, x, x.form) is tag


def test_a_changed_tensor_has_another_tag(tags):
    x = FakeTensor("a")
    tag = tags.current(TENSORS, x, x.form)
    x.version += 1
    assert tags.find(TENSORS, x, x.form) is None
    assert tags.current(TENSORS, x, x.form) is not tag
    assert len(tags) == 1


def test_another_shape_of_the_same_memory_has_a_tag_of_its_own_with_the_same_producer(tags):
    x = FakeTensor("a")
    origin = tags.current(TENSORS, x, x.form)
    origin.counted = True
    view = FakeTensor("a2", memory=x.memory)
    tag = tags.find(TENSORS, view, view.form)
    assert tag is not None
    assert tag is not origin
    assert tag.counted
    assert tags.find(TENSORS, view, view.form) is tag
    assert tags.find(TENSORS, x, x.form) is origin


def test_other_elements_at_the_same_address_share_nothing(tags):
    x = FakeTensor("a")
    tags.current(TENSORS, x, x.form).counted = True
    other = FakeTensor("b", memory=x.memory)
    assert tags.find(TENSORS, other, other.form) is None
    assert not tags.current(TENSORS, other, other.form).counted
    assert tags.current(TENSORS, x, x.form).counted


def test_new_memory_at_an_old_address_has_no_tag(tags):
    x = FakeTensor("a")
    tags.current(TENSORS, x, x.form)
    other = FakeTensor("a")
    assert tags.find(TENSORS, other, other.form) is None
    assert not tags.current(TENSORS, other, other.form).counted


def test_tags_go_with_the_memory(tags):
    x = FakeTensor("a")
    view = FakeTensor("a2", memory=x.memory)
    tags.current(TENSORS, x, x.form)
    tags.current(TENSORS, view, view.form)
    assert len(tags) == 2
    del x, view
    assert len(tags) == 0


def test_a_tag_that_was_replaced_takes_nothing_with_it(tags):
    x = FakeTensor("a")
    tags.current(TENSORS, x, x.form)
    other = FakeTensor("a")
    tag = tags.current(TENSORS, other, other.form)
    del x
    assert tags.find(TENSORS, other, other.form) is tag
