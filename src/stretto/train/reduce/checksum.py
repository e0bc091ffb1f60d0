"""Checksums of tensors that workers compare: fast, and the same on every device and for every memory layout.

Elements are taken as integers of their own width and added up, so that any single bit that differs changes the sum and the order of
elements in memory does not. It is made for finding mistakes, not for keeping out attackers: `job.digest()` is SHA-256.
"""

from __future__ import annotations

import torch

_INTEGERS = {
    1: (torch.uint8, torch.int32),
    2: (torch.int16, torch.int32),
    4: (torch.int32, torch.int32),
    8: (torch.int64, torch.int64),
}
"""What an element of each width is taken as and summed in: sums of the same type are the fast ones."""


def checksum(tensor: torch.Tensor) -> int:
    """The sum of the tensor's elements as integers, modulo 2**32 or 2**64."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.element_size() not in _INTEGERS or not tensor.numel():
        return tensor.numel()
    taken, summed = _INTEGERS[tensor.element_size()]
    return int(tensor.view(taken).sum(dtype=summed).item())
