"""Out of memory: the slices are cut into smaller parts and the step is computed again, in the same process.

The library cannot catch an exception in the body of a script's loop: it unwinds the script. Only the script's own frames are lost.
The state as of the last finished step, the place in the roster and the channel to the agent are carried over, and the script runs
once more from its top, as a newcomer's does, with smaller parts in every forward. Its peers wait for it at the exchange; no other
worker starts again.
"""

from __future__ import annotations

import gc
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from stretto.core.journal import JournalEvent

if TYPE_CHECKING:
    from stretto.train.batch_controller import BatchCarryover
    from stretto.train.reporting import ReporterCarryover
    from stretto.train.session import TrainingSession, WorkerProcess

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

    process: WorkerProcess
    skeleton: object
    tensors: list[torch.Tensor]
    batches: BatchCarryover
    reports: ReporterCarryover
    broken: bool
    """The roster could not wait: a part of this worker's gradient was already on its way."""


def out_of_memory(error: BaseException) -> bool:
    """Whether this error says that memory has run out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(sign in str(error) for sign in SIGNS)


def carry(session: TrainingSession | None, error: BaseException) -> OomCarryover | None:
    """What the script goes on with after this error; None where a restart cannot help."""
    runner = session.runner if session is not None else None
    step = runner.step_to_repeat if runner is not None else None
    if session is None or runner is None or session.closed or step is None or not out_of_memory(error):
        return None
    before = step.parts
    samples = -(-step.count // (step.loader.slices * before))
    session.batches.out_of_memory(step)
    if step.parts == before:
        return None
    text = (
        f"out of memory in step {step.index} with {samples} samples at a time: each slice is computed in {step.parts} parts "
        "now, and the step again"
    )
    session.reporter.send(JournalEvent(what="memory", text=text))
    broken = runner.abandon_pass()
    session.resources.close()
    skeleton, tensors = runner.state_sync.flatten()
    carried = OomCarryover(
        session.process,
        skeleton,
        [tensor.detach().cpu().clone() for tensor in tensors],
        session.batches.carryover(),
        session.reporter.carryover(),
        broken,
    )
    _free(session, error)
    return carried


def _free(session: TrainingSession, error: BaseException) -> None:
    """Lets go of the script's frames, its model and its gradients: the new ones need the memory."""
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None
    session.release()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
