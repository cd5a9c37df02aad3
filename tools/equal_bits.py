"""Try that overwriting changes no bit of a gradient, on real models: ``python tools/equal_bits.py [MODEL@SIZE …]``.

Thresholds of size are taken away, so that small images try what large ones do. Takes minutes; tests try each mechanism
on networks of a few layers.
"""

from __future__ import annotations

import copy
import sys
import time

import torch

import actnn
from actnn.session import session
from actnn.torch import readers, release
from actnn.torch.functions import activation, gradients, standing, stripes
from actnn.workloads import language, models

STEPS, SAMPLES, CLASSES = 3, 2, 10
SMALL = "layers=2,width=128,tokens=32,vocabulary=500"
OF_TORCHVISION = (
    *("resnet18", "resnet50", "resnext50_32x4d", "vgg11_bn", "vgg16", "densenet121", "mobilenet_v2", "mnasnet0_5"),
    *("mobilenet_v3_small", "shufflenet_v2_x1_0", "regnet_y_400mf", "efficientnet_b0", "convnext_tiny", "swin_t"),
)
OF_TIMM = (
    *("resnetv2_50", "dla34", "ghostnet_100", "res2net50_26w_4s", "repvgg_a0", "hrnet_w18_small", "cspdarknet53"),
    *("vit_tiny_patch16_224:img_size=64,depth=4", "mixer_s16_224:img_size=64"),
)
MODELS = (
    *(f"torchvision:{name}@64" for name in OF_TORCHVISION),
    *("torchvision:googlenet@96", "torchvision:squeezenet1_1@96", "torchvision:alexnet@96"),
    *(f"timm:{name}@64" for name in OF_TIMM),
    *("fcn_hrnet_w18@64", "fpn@64", f"gpt2:{SMALL}@0", f"bert:{SMALL}@0"),
)


def main(given: list[str]) -> int:
    """Try each model; return how many differ."""
    torch.set_num_threads(1)
    readers.LEAST_BYTES = gradients.LEAST_BYTES = 0
    release.LARGE_BYTES = activation.LARGE_BYTES = 1
    session.WORKING_BYTES, standing.PIECE_BYTES = 2**18, 2**16
    differing = 0
    for name in given or MODELS:
        # in parts of the batch, and in stripes of single samples
        for least in (2**40, 2**17):
            stripes.LEAST_BYTES, stripes.STRIPE_BYTES = least, 2**16
            began = time.monotonic()
            same = equal(*name.rsplit("@", 1))
            differing += not same
            kind = "parts" if least > 2**30 else "stripes"
            print(f"{'equal  ' if same else 'DIFFERS'} {name}, {kind}, {time.monotonic() - began:.0f} s", flush=True)
    return differing


def equal(name: str, size: str) -> bool:
    """Tell whether losses and gradients of some steps are the same bits with and without overwriting."""
    texts = language.find(name)
    torch.manual_seed(0)
    plain = models.build(name, classes=CLASSES) if texts is None else texts.build()
    images = torch.randn(SAMPLES, 3, int(size), int(size))
    batch = None if texts is None else texts.batch(SAMPLES)
    found = []
    for overwrite in (False, True):
        actnn.config.overwrite = overwrite
        model = actnn.QModule(copy.deepcopy(plain).train(), level="L3", seed=3)
        found.append([])
        for step in range(STEPS):
            # dropout draws the same
            torch.manual_seed(step)
            model.zero_grad(set_to_none=False)
            if batch is None:
                output = model(images)
                outputs = output if isinstance(output, tuple) else (output,)
                loss = sum(each.square().mean() for each in outputs)
            else:
                loss = batch.loss(batch.outputs(model))
            loss.backward()
            found[-1] += [loss.detach(), *(own.grad.clone() for own in model.parameters() if own.grad is not None)]
    return all(torch.equal(plainly, over) for plainly, over in zip(*found, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
