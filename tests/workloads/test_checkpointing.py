"""Checkpointing as a contestant: every block of a transformer is computed anew, with the same gradient."""

from __future__ import annotations

from copy import deepcopy

import pytest

torch = pytest.importorskip("torch")

from actnn.torch.memory import KeptBytes  # noqa: E402
from actnn.workloads import workload  # noqa: E402
from actnn.workloads.checkpointing import checkpointed  # noqa: E402

SMALL = "layers=4,width=64,tokens=64,vocabulary=64"
MODELS = {
    f"gpt2:{SMALL}": "transformers",
    f"llama:{SMALL}": "transformers",
    "timm:vit_small_patch16_224:depth=4,embed_dim=64,num_heads=2,img_size=32,patch_size=4": "timm",
}


@pytest.mark.parametrize("name", MODELS, ids=lambda name: name.partition(":")[0])
def test_every_block_of_a_transformer_keeps_its_input_alone(name: str):
    pytest.importorskip(MODELS[name])
    found = workload.find(name, height=32, width=32, classes=10)
    torch.manual_seed(0)
    plain, batch = found.build().train(), found.batch(2)
    cut = checkpointed(deepcopy(plain))
    kept = {}
    for model in (plain, cut):
        with KeptBytes(model) as counted:
            loss = batch.loss(batch.outputs(model))
        kept[model] = counted.total
        loss.backward()
    for found_one, expected in zip(cut.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found_one.grad, expected.grad)
    assert kept[plain] > 5 * kept[cut]
