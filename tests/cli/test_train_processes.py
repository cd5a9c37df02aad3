"""``actnn train`` in several processes, as torchrun starts them: what one learns, one writer, a process that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import trained_together

from actnn import cli
from actnn.errors import ConfigError
from actnn.workloads.processes import WAYS, joined

SUPPORT = Path(__file__).parents[1] / "support"
# 5 steps an epoch, the last with fewer images, in parts of unequal size
TINY = ["--data", "digits", "--images", "70", "--batch", "15", "--epochs", "2", "--log-every", "1", "--threads", "1"]
TINY += ["--rate", "0.05", "--checkpoint-every", "1"]
# to start two processes, twice where one is killed, on a machine that has other things to do
LONGEST = 300
EIGHT_BITS = ["--level", "L2", "--bits", "8"]

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch knows no processes")


def run(command: list[str]) -> None:
    """Run a program that trains in two processes; raise where it fails."""
    paths = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """What runs came to: of one process, of two in each way, and of two at the default level."""
    folder = tmp_path_factory.mktemp("runs")
    model = [*TINY, "--model", "small_classifiers:with_batch_norm"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SUPPORT)
        assert cli.main(["train", *model, *EIGHT_BITS, "--out", str(folder / "one")]) == 0
    cases = {way: [*model, *EIGHT_BITS, "--parallel", way] for way in WAYS} | {"whole": model}
    run([trained_together.__file__, str(folder), *(f"{name}={json.dumps(given)}" for name, given in cases.items())])
    return folder


def losses(out: Path) -> list[float]:
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / "model.pt", weights_only=True)


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_learn_as_one_does(way, runs):
    assert (runs / f"{way}.txt").read_text().count("epoch 2/2") == 1
    assert losses(runs / way) == pytest.approx(losses(runs / "one"), rel=0.01)
    one, two = weights(runs / "one"), weights(runs / way)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0.02, atol=0.01)


def test_torchrun_starts_a_run_anew_of_which_a_process_is_killed_and_it_ends_with_the_same_weights(runs, tmp_path):
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--local-addr", "127.0.0.1"]
    train = [
        "-m",
        "actnn",
        "train",
        *TINY,
        "--model",
        "small_classifiers:that_is_killed",
        "--out",
        str(tmp_path / "parts"),
    ]
    run([*launch, "--max-restarts", "1", *train])
    whole, parts = weights(runs / "whole"), weights(tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(runs / "whole")
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
