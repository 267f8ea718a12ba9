"""How large an image's root volume is. A node's own can be larger, never smaller: EC2 refuses a volume below its snapshot's size."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stacks.machines import Accelerator

# GiB. Images are built on a volume of this size, which has to hold the parent's own snapshot: of AWS's deep learning images that
# size is not documented, so a pipeline that finds it too small says so at its first launch.
IMAGE_GIB: Mapping[Accelerator, int] = MappingProxyType(
    {Accelerator.CUDA: 100, Accelerator.NEURON: 300, Accelerator.CPU: 30, Accelerator.NONE: 20}
)
