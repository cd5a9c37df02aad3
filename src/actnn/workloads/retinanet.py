"""RetinaNet (Lin et al., 2017) by torchvision: ResNet-18, a feature pyramid and focal loss, in widths for two cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actnn.errors import UnsupportedError
from actnn.workloads import resnets

if TYPE_CHECKING:
    from torch import nn

STAGES = (2, 3, 4)
# smallest side of an anchor at the finest level, twice that at each next one
FINEST = 16
LEVELS = 5


def retinanet(classes: int, size: int, width: int) -> nn.Module:
    """Return a detector for square images of a size, which are normalised already."""
    try:
        from torchvision.models.detection import RetinaNet
        from torchvision.models.detection.anchor_utils import AnchorGenerator
        from torchvision.models.detection.backbone_utils import BackboneWithFPN
        from torchvision.ops.feature_pyramid_network import LastLevelP6P7
    except (ImportError, RuntimeError) as problem:
        # one built for another torch raises RuntimeError
        raise UnsupportedError(f"--task detection needs a torchvision that imports ({problem}).") from problem
    backbone = resnets.resnet(resnets.SHAPES["resnet18"], classes, 3)
    pyramid = BackboneWithFPN(
        backbone,
        {f"layer{stage}": str(place) for place, stage in enumerate(STAGES)},
        [resnets.CHANNELS[stage - 1] for stage in STAGES],
        width,
        LastLevelP6P7(width, width),
    )
    octaves = [tuple(int(FINEST * 2**level * 2 ** (third / 3)) for third in range(3)) for level in range(LEVELS)]
    anchors = AnchorGenerator(tuple(octaves), ((0.5, 1.0, 2.0),) * LEVELS)
    model: nn.Module = RetinaNet(
        pyramid,
        classes,
        min_size=size,
        max_size=size,
        image_mean=[0.0, 0.0, 0.0],
        image_std=[1.0, 1.0, 1.0],
        anchor_generator=anchors,
        detections_per_img=100,
    )
    return model
