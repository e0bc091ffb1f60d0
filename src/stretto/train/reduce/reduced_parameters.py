"""Which parameters have their gradients reduced: all that were trained at some time, since scripts freeze and thaw them."""

from __future__ import annotations

from stretto.train.reduce.buffers import Buffers
from stretto.train.reduce.gradients import Gradients
from stretto.train.reduce.reducer import Reducer
from stretto.train.sharing.optimizer_hooks import OptimizerHooks
from stretto.train.sharing.shared_objects import SharedObjects


class ReducedParameters:
    """Parameters are named by their place in `SharedObjects.all_parameters`."""

    def __init__(self, shared: SharedObjects, *, reducer: Reducer, hooks: OptimizerHooks) -> None:
        self._shared = shared
        self._reducer = reducer
        self._hooks = hooks
        self._at_boundary: set[int] | None = None
        """Those that were trained at the last boundary."""
        self.reduced: set[int] = set()
        self.thawed: set[int] = set()
        """Those that a step has thawed before its first pass. Frozen between two steps, they are nothing that was set once."""

    def trained(self) -> set[int]:
        """Those that are trained now."""
        return {place for place, parameter in enumerate(self._shared.all_parameters()) if parameter.requires_grad}

    def prepare(self, reduced: set[int] | None = None) -> None:
        """Reduces the gradients of these parameters from now on; by default also of all that are trained now."""
        reducer = self._reducer
        self.reduced = self.reduced | self.trained() if reduced is None else reduced
        parameters = [parameter for place, parameter in enumerate(self._shared.all_parameters()) if place in self.reduced]
        if reducer.gradients is not None:
            reducer.gradients.close()
        moving = reducer.buffers.moving if reducer.buffers is not None else set[int]()
        reducer.gradients = self._hooks.gradients = Gradients(parameters)
        reducer.buffers = Buffers(self._shared.modules)
        reducer.buffers.moving |= moving

    def at_boundary(self) -> None:
        """Between two steps."""
        self._at_boundary = self.trained()

    def begin_pass(self, *, first: bool) -> None:
        """A training pass begins, the `first` of its step or a later one."""
        trained = self.trained()
        if not trained <= self.reduced:
            self.prepare()
        if first and self._at_boundary is not None:
            self.thawed |= trained - self._at_boundary

    def frozen_between_steps(self) -> set[int]:
        """Ids of parameters that are frozen now and that every step thaws."""
        return {
            id(parameter)
            for place, parameter in enumerate(self._shared.all_parameters())
            if place in self.thawed and not parameter.requires_grad
        }
