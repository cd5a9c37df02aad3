"""``actnn train`` in several processes, as torchrun starts them: what one learns, one writer, a process that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from actnn import cli
from actnn.errors import ConfigError
from actnn.workloads.processes import joined

SUPPORT = Path(__file__).parents[1] / "support"
# 5 steps an epoch, the last with fewer images, in parts of unequal size
TINY = ["--data", "digits", "--images", "70", "--batch", "15", "--epochs", "2", "--log-every", "1", "--threads", "1"]
TINY += ["--rate", "0.05", "--checkpoint-every", "1"]
# to start two processes, twice where one is killed, on a machine that has other things to do
LONGEST = 120
EIGHT_BITS = ["--level", "L2", "--bits", "8"]

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch knows no processes")


def together(out: Path, model: str, *more: str, restarts: int = 0) -> str:
    """Train in two processes; return what was said."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--local-addr", "127.0.0.1"]
    launch += ["--max-restarts", str(restarts)]
    train = ["-m", "actnn", "train", *TINY, "--model", f"small_classifiers:{model}", "--out", str(out), *more]
    paths = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, *launch, *train]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def losses(out: Path) -> list[float]:
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / "model.pt", weights_only=True)


@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_two_processes_learn_as_one_does(way, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SUPPORT)
    model = ["--model", "small_classifiers:with_batch_norm"]
    assert cli.main(["train", *TINY, *EIGHT_BITS, *model, "--out", str(tmp_path / "one")]) == 0
    said = together(tmp_path / "two", "with_batch_norm", *EIGHT_BITS, "--parallel", way)
    assert said.count("epoch 2/2") == 1
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=0.01)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0.02, atol=0.01)


def test_a_run_of_which_a_process_is_killed_is_started_anew_and_ends_with_the_same_weights(tmp_path):
    together(tmp_path / "whole", "with_batch_norm")
    together(tmp_path / "parts", "that_is_killed", restarts=1)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    for name in whole:
        assert torch.equal(parts[name], whole[name])


def test_a_way_to_train_together_is_refused_where_nobody_else_is_there():
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node"), joined("ddp", {}):
        pass


def test_batches_that_are_too_small_for_the_processes_are_refused():
    from actnn.cli.train.options import parse
    from actnn.workloads.processes import Processes
    from actnn.workloads.runs.contestants import load_data

    settings, _ = parse(["--images", "70", "--batch", "15"])
    with pytest.raises(ConfigError, match="only 10 images for 8 processes"):
        load_data(settings, Processes(0, 8, "ddp"))
