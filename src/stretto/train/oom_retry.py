"""Out of memory: the slices are cut into smaller parts and the step is computed again, in the same process.

An exception in the body of a script's loop cannot be caught by the library: it unwinds the script. What is lost is only the
script's own frames. The state as of the last finished step, the place in the roster and the link to the agent are carried over,
and the script runs once more from its top, as a newcomer's does, with less in every forward. Its peers wait for it at the
exchange, and nobody else starts again.
"""

from __future__ import annotations

import gc
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stretto.train.job import Job

MOST = 16
"""How often a script may be started again in one process: parts are halved each time."""
SIGNS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA out of memory",
    "Cannot allocate memory",
)


@dataclass(slots=True)
class OomCarryover:
    """What outlives the script's frames."""

    job: Job
    skeleton: Any
    tensors: list[torch.Tensor]
    plan: dict[str, Any]
    broken: bool
    """The roster could not wait: a part of this worker's gradient was already on its way."""


def out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(sign in str(error) for sign in SIGNS)


def carry(job: Job | None, error: BaseException) -> OomCarryover | None:
    """What to go on with after this error; None where going on cannot help."""
    step = job._passes.open if job is not None else None
    if job is None or job.closed or step is None or not step.loader.train or not job._passes.running or not out_of_memory(error):
        return None
    reducer, before = job._reducer, step.parts
    assert reducer is not None and reducer.gradients is not None and reducer.buffers is not None
    samples = -(-step.count // (step.loader.slices * before))
    job._planning.out_of_memory(step)
    if step.parts == before:
        return None
    text = (
        f"out of memory in step {step.index} with {samples} samples at a time: each slice is computed in {step.parts} parts "
        "now, and the step again"
    )
    job._telling.say("event", what="memory", text=text)
    broken = reducer.gradients.launched and job.workers > 1
    reducer.gradients.close()
    reducer.buffers.restore()
    if broken:
        job._team.failed()
    job._resources.close()
    skeleton, tensors = job._shared.flatten(job._admission.place())
    carried = OomCarryover(
        job, skeleton, [tensor.detach().cpu().clone() for tensor in tensors], job._planning.carried(), bool(broken)
    )
    _forget(job, error)
    return carried


def _forget(job: Job, error: BaseException) -> None:
    """Lets go of the script's frames, its model and its gradients: the new ones need their room."""
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None
    job._shared.objects.clear()
    job._loaders.clear()
    job._reducer = None
    job._passes.open = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
