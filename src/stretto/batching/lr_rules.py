"""How the learning rate follows the batch: each rule is a value with one pure method, the factor on what the user set.

| rule | factor at batch kB₀ | when |
|---|---|---|
| `AdaScale` | the measured gain, between 1 and k | SGD with momentum; any k; a schedule should follow `job.progress` |
| `LinearScale` | k, reached over 8 steps | SGD with momentum, while kB₀ is well below the noise scale |
| `SqrtScale` | √k | Adam and AdamW |
| `LEGW` | √k, with k times the warm-up epochs | large batches of recurrent and attention models, any optimizer |
| `None` | 1 | the rate is managed by the script |

B₀ is the batch that the rate was chosen for: the policy's first batch, or `reference=`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from stretto.core.errors import ScriptError


@dataclass(frozen=True, slots=True)
class Moment:
    """What a rule may depend on, for one parameter group at one step."""

    reference: int
    """B₀."""
    batch: int
    before: float = 1.0
    """The factor when the batch changed last."""
    since: int = 1 << 30
    """Steps since then; 0 in the first step of the new batch."""
    warmed: float = 1.0
    """LEGW's warm-up that is done, between 0 and 1."""
    pair: tuple[float, float] | None = None
    """(|G|², trΣ) of the group, where measured."""

    @property
    def scale(self) -> float:
        return self.batch / self.reference


class LrRule(Protocol):
    """What users may pass as `lr_rule=`: the rules of this module, or any object with these two members.

    `factor` has to be pure: it is called several times for one step, on every worker, and must give the same value.
    """

    @property
    def reference(self) -> int | None: ...

    def factor(self, moment: Moment) -> float:
        """What the group's learning rate is multiplied by in this step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaScale:
    """The gain r = (σ² + μ²)/(σ²/S + μ²) of a step with S times the batch (Johnson et al., ICML 2020): needs no
    tuning."""

    reference: int | None = None

    def __post_init__(self) -> None:
        _check(self)

    def factor(self, moment: Moment) -> float:
        return gain(moment.pair, batch=moment.batch, reference=moment.reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScale:
    """k times, reached in equal steps over `ramp` steps in both directions, so that old momentum is not scaled with it
    (Lin et al., arXiv 1904.12043)."""

    ramp: int = 8
    reference: int | None = None

    def __post_init__(self) -> None:
        _check(self)
        _check_number(self, "ramp", self.ramp)

    def factor(self, moment: Moment) -> float:
        return ramped(moment.before, moment.scale, since=moment.since, over=self.ramp)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqrtScale:
    """√k: keeps the size of an adaptive optimizer's noise (Krizhevsky, arXiv 1404.5997; Malladi et al., NeurIPS
    2022)."""

    ramp: int = 0
    reference: int | None = None

    def __post_init__(self) -> None:
        _check(self)
        _check_number(self, "ramp", self.ramp)

    def factor(self, moment: Moment) -> float:
        return ramped(moment.before, moment.scale**0.5, since=moment.since, over=self.ramp)


@dataclass(frozen=True, slots=True, kw_only=True)
class LEGW:
    """√k with the warm-up epochs of the reference batch times k (You et al., SC 2019)."""

    warmup_epochs: float
    reference: int | None = None

    def __post_init__(self) -> None:
        _check(self)
        _check_number(self, "warmup_epochs", self.warmup_epochs)

    def factor(self, moment: Moment) -> float:
        return moment.scale**0.5 * min(1.0, moment.warmed)

    def warms(self, epochs: float, *, scale: float) -> float:
        """The part of the warm-up that this much of an epoch completes at this scale."""
        return epochs / (self.warmup_epochs * scale) if self.warmup_epochs > 0 else 1.0


def gain(pair: tuple[float, float] | None, *, batch: int, reference: int) -> float:
    """AdaScale's r: how many reference steps a step with this batch is worth. 1 while nothing is measured."""
    if pair is None or batch == reference:
        return 1.0
    signal, noise = pair
    below = noise / batch + signal
    return (noise / reference + signal) / below if below > 0 else 1.0


def ramped(before: float, target: float, *, since: int, over: int) -> float:
    """Momentum compensation: from `before` to `target` in `over` equal steps, up or down."""
    if since >= over:
        return target
    return before + since / over * (target - before)


def rule_of(lr_rule: object) -> LrRule:
    """What the user wrote as `lr_rule=`. Raises `ScriptError` for what is no rule."""
    if isinstance(lr_rule, type) or not callable(getattr(lr_rule, "factor", None)):
        fix = (
            f"write stretto.{lr_rule.__name__}() with brackets"
            if isinstance(lr_rule, type)
            else ("give stretto.AdaScale(), LinearScale(), SqrtScale(), LEGW(warmup_epochs=...) or None")
        )
        raise ScriptError(f"lr_rule={lr_rule!r} is not a learning-rate rule: {fix}")
    return lr_rule  # pyright: ignore[reportReturnType]


def _check(rule: LrRule) -> None:
    reference = rule.reference
    if reference is not None and (isinstance(reference, bool) or not isinstance(reference, int) or reference < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScriptError(
            f"{type(rule).__name__}(reference={reference!r}): the batch that the rate was chosen for is "
            "a whole number of at least 1"
        )


def _check_number(rule: LrRule, name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ScriptError(f"{type(rule).__name__}({name}={value!r}) must be a number of at least 0")
