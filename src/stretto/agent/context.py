"""What the parts of an agent share about its job: the options, the records, the workers. It makes no decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stretto.agent.completion import Completion
from stretto.agent.options import RunOptions
from stretto.agent.records.recorder import Recorder
from stretto.agent.records.run_folder import RunFolder

if TYPE_CHECKING:
    from stretto.agent.coordination import Coordination
    from stretto.agent.workers.worker_handle import WorkerHandle


class BackgroundTasks:
    """Tasks of one agent. An exception in any of them goes to `on_error`; `cancel` ends those that still run."""

    def __init__(self, *, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_error(error)


@dataclass(slots=True)
class JobContext:
    """One job under one agent, for as long as its `Supervisor` runs."""

    options: RunOptions
    folder: RunFolder
    recorder: Recorder
    coordination: Coordination
    completion: Completion
    tasks: BackgroundTasks
    workers: dict[str, WorkerHandle] = field(default_factory=lambda: {})
    """This agent's workers, by name; dead ones until no roster names them."""
    slices: int = 0
    """Slices per step, once a worker is ready."""
    mixed: bool = False
    """Workers that compute other bits were admitted (--allow-mixed)."""

    @property
    def serving(self) -> list[WorkerHandle]:
        """Workers that count towards the wanted number."""
        return [worker for worker in self.workers.values() if worker.serving]

    @property
    def known_slices(self) -> int:
        """Slices per step as this agent's workers or the store say; 0 if nobody knows yet."""
        return self.slices or self.coordination.slices
