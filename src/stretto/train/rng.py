"""Random numbers that belong to a place in the job, never to a process.

Every generator that a script may use is set from (seed, step, pass, slice) before a slice, from (seed, step) before the rest of a
step, and from (seed, epoch, sample) before a sample is read.
"""

from __future__ import annotations

import random
import sys

import torch

_MASK = (1 << 64) - 1


def mix(*parts: int) -> int:
    """64 well-mixed bits of some integers (the finaliser of SplitMix64 after each)."""
    value = 0x9E3779B97F4A7C15
    for part in parts:
        value = (value ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
        value ^= value >> 31
    return value


def seed_all(*parts: int) -> None:
    """Sets torch's, numpy's and Python's generators."""
    value = mix(*parts)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)
