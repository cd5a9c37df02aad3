"""Steps of training on a CUDA device that is not there; run as a program, it prints what each of them did as JSON.

usage: fake_steps.py MODEL[+bfloat16|+float16][+channels_last]:LEVEL:BATCH:SIZE:STEPS[:MEMORY] …
With MEMORY, a budget such as 8MB, samples of the batch are told as well.
"""

from __future__ import annotations

import json
import sys
import time

import fake_cuda
import torch

import actnn

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def made(name: str) -> torch.nn.Module:
    """Return a model on the host, or nowhere, where its numbers would take long to draw."""
    if name.startswith("resnet"):
        import torchvision

        with torch.device("meta"):
            return torchvision.models.get_model(name)
    import timm

    return timm.create_model(name)


def to_device(model: torch.nn.Module, dtype: torch.dtype, form: torch.memory_format) -> None:
    """Let a model lie on the fake device: nobody reads its numbers."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            order = form if parameter.dim() == 4 else torch.contiguous_format
            empty = torch.empty(parameter.shape, dtype=dtype, device="cuda", memory_format=order)
            setattr(module, name, torch.nn.Parameter(empty))
        for name, buffer in module.named_buffers(recurse=False):
            kind = dtype if buffer.is_floating_point() else buffer.dtype
            setattr(module, name, torch.empty(buffer.shape, dtype=kind, device="cuda"))


def steps_of(name: str, level: str, batch: int, size: int, count: int, memory: str | None = None) -> list[dict]:
    """Train so many steps; return what each of them did."""
    name, *kinds = name.split("+")
    dtype = next((DTYPES[kind] for kind in kinds if kind in DTYPES), torch.float32)
    form = torch.channels_last if "channels_last" in kinds else torch.contiguous_format
    found, plain = [], made(name)
    with fake_cuda.played() as device:
        to_device(plain, dtype, form)
        model = plain if level == "exact" else actnn.QModule(plain, level=level, memory=memory)
        model.train()
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
        images = torch.empty(batch, 3, size, size, dtype=dtype, device="cuda", memory_format=form)
        labels = torch.zeros(batch, dtype=torch.int64, device="cuda")
        for _ in range(count):
            device.meter.begin()
            start = time.process_time()
            optimizer.zero_grad(set_to_none=True)
            if memory is not None:
                model.set_samples(list(range(batch)))
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            kept = device.meter.live_bytes
            loss.backward()
            optimizer.step()
            del loss
            device.moves.clock += 1
            step = device.meter.step
            found.append(
                {
                    "launches": step.total,
                    "by_kind": dict(step.launches.most_common()),
                    "out": step.out,
                    "out_bytes": step.out_bytes,
                    "up": step.up,
                    "peak_gib": round(step.peak_bytes / 2**30, 4),
                    "kept_gib": round(kept / 2**30, 4),
                    "seconds": round(time.process_time() - start, 2),
                }
            )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:]:
        name, level, batch, size, count, *rest = case.split(":")
        found = {"case": case, "steps": steps_of(name, level, int(batch), int(size), int(count), *rest)}
        sys.stdout.write(json.dumps(found) + "\n")
