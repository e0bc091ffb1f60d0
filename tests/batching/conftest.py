"""One thread, as a worker has it: these tests share the machine with others."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
