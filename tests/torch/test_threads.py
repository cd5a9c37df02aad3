"""The OpenMP runtime of torch's wheel: shared by its name, or lent where it has a name of its own."""

from __future__ import annotations

import pytest

from actnn.torch.threads import renamed


@pytest.mark.parametrize("folder", ["torch/lib", "torch.libs"])
def test_a_runtime_with_a_name_of_its_own_is_lent(tmp_path, folder):
    (tmp_path / "torch").mkdir()
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "libgomp-a34b3233.so.1").touch()
    assert renamed(tmp_path / "torch") == tmp_path / folder / "libgomp-a34b3233.so.1"


def test_one_with_the_usual_name_is_shared_by_that(tmp_path):
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libgomp.so.1").touch()
    assert renamed(tmp_path / "torch") is None
