"""What changes bits besides the script: threads, instruction set, versions, device, determinism settings."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch


def prepare(threads: int) -> None:
    """The settings that every worker of a job has, launched or alone."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def fingerprint() -> dict[str, Any]:
    """Workers with equal fingerprints compute equal bits."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "machine": platform.machine(),
        "torch": str(torch.__version__),
        "device": device,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "dtype": str(torch.get_default_dtype()),
    }
