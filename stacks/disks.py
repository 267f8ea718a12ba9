"""How large root volumes are: an image's, and that of the nodes made from it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stacks.config import Config
from stacks.machines import Accelerator

# GiB that an image is built on. It has to hold the parent's snapshot, whose size AWS does not document: its Neuron guide asks for
# 512 (awsdocs-neuron, setup/pytorch/update-dlami), and the GPU base image brings four CUDA toolkits before vLLM comes.
IMAGE_GIB: Mapping[Accelerator, int] = MappingProxyType(
    {Accelerator.CUDA: 150, Accelerator.NEURON: 512, Accelerator.CPU: 30, Accelerator.NONE: 20}
)


def engine_gib(config: Config) -> int:
    """What the configuration asks for, and never less than the image: EC2 refuses a volume below its snapshot's size."""
    return max(config.root_volume_gib, IMAGE_GIB[config.machine.accelerator])
