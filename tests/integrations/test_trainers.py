"""Real trainers: a run that was killed and resumed equals the uninterrupted one bit for bit, and figures are logged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import trainers
from torch_framework import same_tensors

import actnn

# far more than they need
LONGEST = 300


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """What all trainers came to."""
    folder = tmp_path_factory.mktemp("trainers")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, trainers.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def outcome(folder: Path) -> dict[str, Any]:
    problem = folder / "error.txt"
    assert not problem.exists(), problem.read_text()
    return torch.load(folder / trainers.WEIGHTS, weights_only=True)


@pytest.mark.parametrize(
    "trainer", [pytest.param(name, marks=pytest.mark.works_with(name)) for name in sorted(trainers.RUNS)]
)
def test_a_run_that_was_killed_and_resumed_equals_the_whole_one_and_logs_what_it_kept(trainer, runs):
    expected, found = (outcome(runs / trainer / part) for part in ("whole", "parts"))
    assert json.loads((runs / "codes.json").read_text())[trainer] == [0, -signal.SIGKILL, 0]
    assert expected["weights"].keys() == found["weights"].keys()
    for name, weight in expected["weights"].items():
        same_tensors(found["weights"][name], weight)
    notes = expected["notes"]
    assert notes["actnn/kept_bytes"] > 0
    assert 1 < notes["actnn/bits"] < 8
    # a session whose steps nobody begins would give all the same
    assert len({round(bits, 3) for bits in notes["bits of layers"]}) > 1


def test_a_trainer_of_a_wrapper_evaluates_with_a_loss(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    from actnn.integrations.huggingface import compress

    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=20, **sizes))
    examples = [{"input_ids": torch.arange(8), "labels": torch.tensor(number % 2)} for number in range(4)]
    arguments = transformers.TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = compress(transformers.Trainer(actnn.QModule(model), arguments, eval_dataset=examples))
    assert trainer.evaluate()["eval_loss"] > 0
