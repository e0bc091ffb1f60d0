"""Checksums of tensors that workers compare: fast, and the same on every device and for every memory layout.

Elements are taken as integers of their own width and added up modulo 2**64, so that any single bit that differs changes the sum. It
is made for finding mistakes, not for keeping out attackers: `job.digest()` is SHA-256.
"""

from __future__ import annotations

import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: torch.Tensor) -> int:
    """The sum of the tensor's elements as integers."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    width = tensor.element_size()
    if width not in _INTEGERS or not tensor.numel():
        return tensor.numel()
    return int(tensor.view(_INTEGERS[width]).sum(dtype=torch.int64).item())
