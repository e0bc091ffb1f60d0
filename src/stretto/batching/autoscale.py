"""A job that sizes itself: trial and error over the number of workers, as a pure function of what was measured.

The search grows while a condition holds for the workers that were added last, and goes back by them when it does not
(the AutoScaling Engine of Or et al., MLSys 2020):

* efficiency: s = (ΔR/Δk)/(R_k/k), the throughput that each added worker brings, relative to a worker without them;
* utility: what the earlier finish is worth, minus what the workers cost until then;
* heuristic: N workers more (or fewer) every K steps.

Measurements expire, so a settled job looks again and adapts when the machine has changed. Nothing is changed in the
last part of a job, where a change cannot pay for itself. With efficiency=0.5 the search ends near the least product of
time and cost: k/R(k)² falls with k exactly while s > 1/2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.batching.utility import UtilityCurve, parse_worth
from stretto.core.errors import UsageError
from stretto.core.text import quantity


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Grow while each added worker brings more than `threshold` of the throughput that one of the present workers has."""

    threshold: float


@dataclass(frozen=True, slots=True)
class Utility:
    """Grow while the earlier finish is worth more than the added workers cost."""

    price: float
    """Of a worker for an hour."""
    worth: UtilityCurve


@dataclass(frozen=True, slots=True)
class Heuristic:
    """`by` workers more every `steps` steps; with `climb`, back again when the throughput fell."""

    by: int
    steps: int
    climb: bool = False


Goal = Efficiency | Utility | Heuristic


@dataclass(frozen=True, slots=True)
class AutoscaleConfig:
    """What the search aims at, its range of sizes, and how long measurements have to be and stay valid."""

    goal: Goal
    least: int
    most: int
    expiry_s: float = 180.0
    """A measurement older than this is not used: at 90 s, searches were repeated for nothing."""
    expiry_windows: float = 10.0
    """But it counts for the time of at least this many measurements: else a search would never end where steps take a minute."""
    steps: int = 12
    """Steps that a measurement needs."""
    window_s: float = 2.0
    """And seconds."""
    slices: int = 0
    """Of the job, where known: sizes that leave the busiest worker as many slices as a smaller one does are not tried."""
    margin: float = 0.1
    """A size that was found to pay is left only when the efficiency is below the threshold by more than this."""
    drift: float = 0.2
    """When the rate at one size changes by this part, what was measured at others no longer counts."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The throughput with one number of workers."""

    rate: float
    """Samples a second, lately."""
    at_s: float
    """When it was last measured."""
    steps: int
    seconds: float
    arrived: float | None = None
    """The rate when this size was taken up; None while that is being measured."""


@dataclass(frozen=True, slots=True)
class AutoscaleState:
    """Where the job stands."""

    now_s: float
    """Since the job's start, as all times here."""
    workers: int
    """In effect."""
    wanted: int
    """Asked for: differs from `workers` while a change is under way."""
    step: int
    measured: Mapping[int, Measurement] = field(default_factory=lambda: {})
    """Throughput by number of workers."""
    remaining_s: float | None = None
    """At the present speed; None if the end is not known."""
    pause_s: float = 0.1
    """What a change costs those who train: measured."""
    startup_s: float = 3.0
    """From asking for a worker until it trains: measured."""
    changed_step: int = 0
    """The step at which the number of workers changed last."""
    free: int | None = None
    """Workers that could be had now besides those wanted; None if nobody says."""


@dataclass(frozen=True, slots=True)
class AutoscaleDecision:
    """The number of workers that the job should have, and why: the reason is shown to the user."""

    workers: int
    reason: str


def decide(config: AutoscaleConfig, state: AutoscaleState) -> AutoscaleDecision:
    """How many workers the job should have now, and why."""
    if state.workers != state.wanted:
        return AutoscaleDecision(state.wanted, f"waiting: {_workers(state.workers)} in training, {state.wanted} wanted")
    inside = min(max(state.workers, config.least), config.most)
    if inside != state.workers:
        return AutoscaleDecision(inside, f"{_workers(state.workers)}: outside the job's {config.least}:{config.most}")
    match config.goal:
        case Heuristic():
            return _guarded(config, state, _heuristic(config.goal, config, state))
        case Efficiency() | Utility():
            return _guarded(config, state, _search(config.goal, config, state))


def scaling_efficiency(low: tuple[int, float], high: tuple[int, float]) -> float:
    """s_{k,d} from (workers, samples a second) at k and at k+d workers."""
    (few, slow), (many, fast) = low, high
    if many <= few or slow <= 0:
        raise ValueError(f"efficiency needs two sizes and a positive rate, not {low} and {high}")
    return ((fast - slow) / (many - few)) / (slow / few)


def net_utility(goal: Utility, *, workers: int, rate: float, state: AutoscaleState) -> float:
    """What it is worth to finish with `workers` at `rate` samples a second, less what they cost until then."""
    here = state.measured[state.workers].rate
    left_s = (state.remaining_s or 0.0) * here / rate
    return goal.worth.at(state.now_s + left_s) - workers * left_s / 3600.0 * goal.price


def parse_autoscale(text: str, *, least: int, most: int, price: float | None = None, worth: str | None = None) -> AutoscaleConfig:
    """The value of `--autoscale` with `--price` and `--worth`. Raises `UsageError`."""
    if least >= most:
        raise UsageError(f"--autoscale needs room: --workers {least}:{most} allows one size only; give a range such as 1:8")
    goal = _parse_goal(text.strip(), price, worth)
    if not isinstance(goal, Utility) and (price is not None or worth is not None):
        raise UsageError(f"--price and --worth go with --autoscale utility, not with {text!r}")
    return AutoscaleConfig(goal, least, most)


_HEURISTIC = re.compile(r"(?P<sign>\+-|\+|-|±|−)\s*(?P<by>\d+)\s+every\s+(?P<steps>\d+)\s+steps?")


def _parse_goal(text: str, price: float | None, worth: str | None) -> Goal:
    if text == "utility":
        return _parse_utility(price, worth)
    name, equals, value = text.partition("=")
    if name.strip() == "efficiency" and equals:
        return _parse_efficiency(value.strip())
    fields = _HEURISTIC.fullmatch(text)
    if fields is None:
        raise UsageError(
            f"--autoscale {text!r} is not understood: write efficiency=0.6, utility "
            "(with --price and --worth), or '+1 every 50 steps'"
        )
    by, steps = int(fields["by"]), int(fields["steps"])
    if by < 1 or steps < 1:
        raise UsageError(f"--autoscale {text!r}: both numbers must be at least 1")
    return Heuristic(-by if fields["sign"] in "-−" else by, steps, climb=fields["sign"] in ("±", "+-"))


def _parse_efficiency(value: str) -> Efficiency:
    try:
        threshold = float(value)
    except ValueError:
        raise UsageError(f"--autoscale efficiency={value!r} is not a number: write for example efficiency=0.6") from None
    if not 0 < threshold <= 1:
        raise UsageError(
            f"--autoscale efficiency={value} must be above 0 and at most 1: "
            "the part of a worker's own throughput that each added one must bring"
        )
    return Efficiency(threshold)


def _parse_utility(price: float | None, worth: str | None) -> Utility:
    if price is None or worth is None:
        missing = " and ".join(flag for flag, given in (("--price", price), ("--worth", worth)) if given is None)
        raise UsageError(f"--autoscale utility also needs {missing}, for example --price 1.20 --worth 'decay(100, 2h)'")
    if not 0 <= price < float("inf"):
        raise UsageError(f"--price {price} must be at least 0: the price of a worker for an hour")
    return Utility(price, parse_worth(worth))


def _workers(count: int) -> str:
    return quantity(count, "worker")


def _fresh(config: AutoscaleConfig, state: AutoscaleState, workers: int) -> Measurement | None:
    """The measurement at this size, if it is long enough and still counts.

    What growing brings is looked up again after a while. What the workers that are there already bring is not, as long
    as they go on at the speed that they came with: to see it, some would have to leave.
    """
    measurement = state.measured.get(workers)
    if measurement is None or measurement.steps < config.steps or measurement.seconds < config.window_s:
        return None
    if workers == state.workers:
        return measurement
    window_s = max(config.window_s, config.steps * measurement.seconds / measurement.steps)
    expired = state.now_s - measurement.at_s > max(config.expiry_s, config.expiry_windows * window_s)
    return None if _drifted(config, state) or (expired and workers > state.workers) else measurement


def _drifted(config: AutoscaleConfig, state: AutoscaleState) -> bool:
    """Whether this size is not as fast, or as slow, as it was when it was taken up."""
    here = state.measured.get(state.workers)
    return here is not None and here.arrived is not None and abs(here.rate / here.arrived - 1) > config.drift


def _search(goal: Efficiency | Utility, config: AutoscaleConfig, state: AutoscaleState) -> AutoscaleDecision:
    here = _fresh(config, state, state.workers)
    if here is None:
        return AutoscaleDecision(state.workers, f"measuring {_workers(state.workers)}")
    if isinstance(goal, Utility) and state.remaining_s is None:
        return AutoscaleDecision(state.workers, "the end of the job is not known, so its utility is not either")
    sizes = [size for size in sorted(state.measured) if _fresh(config, state, size) is not None]
    below = max((size for size in sizes if size < state.workers), default=None)
    if below is not None:
        settled = here.steps >= 2 * config.steps
        pays, why = _pays(goal, state, below, state.workers, margin=config.margin if settled else 0.0)
        if not pays:
            return AutoscaleDecision(below, f"back to {_workers(below)}: {why}")
    above = min((size for size in sizes if size > state.workers), default=None)
    pays, why = _pays(goal, state, state.workers, above) if above is not None else (False, "")
    if above is not None and pays:
        return AutoscaleDecision(above, f"{_workers(above)}: {why}")
    if below is None and state.workers > config.least:
        return _down(config, state)
    return _between(config, state, above, why) if above is not None else _up(config, state)


def _pays(goal: Efficiency | Utility, state: AutoscaleState, few: int, many: int, *, margin: float = 0.0) -> tuple[bool, str]:
    slow, fast = state.measured[few].rate, state.measured[many].rate
    match goal:
        case Efficiency(threshold):
            share, bound = scaling_efficiency((few, slow), (many, fast)), threshold - margin
            sign = ">" if share > bound else "<="
            return share > bound, f"efficiency of {few} to {many} is {share:.2f} {sign} {bound:g}"
        case Utility():
            low = net_utility(goal, workers=few, rate=slow, state=state)
            high = net_utility(goal, workers=many, rate=fast, state=state)
            sign = ">" if high > low else "<="
            return high > low, f"net utility of {_workers(many)} is {high:.4g} {sign} {low:.4g} of {few}"


def _between(config: AutoscaleConfig, state: AutoscaleState, above: int, why: str) -> AutoscaleDecision:
    """A larger size did not pay. A doubling may have jumped over the best one: the middle is tried once."""
    middle = _smallest(config, (state.workers + above) // 2)
    if middle > state.workers and _fresh(config, state, middle) is None:
        return AutoscaleDecision(middle, f"trying {_workers(middle)}: {why}")
    return AutoscaleDecision(state.workers, f"settled on {_workers(state.workers)}: {why}")


def _up(config: AutoscaleConfig, state: AutoscaleState) -> AutoscaleDecision:
    """Doubles: sizes are few, and each costs a measurement."""
    target = _smallest(config, min(2 * state.workers, _most(config, state)))
    if target <= state.workers:
        bound = "the most allowed" if state.workers >= config.most else "all that can be had"
        return AutoscaleDecision(state.workers, f"settled on {_workers(state.workers)}: {bound}")
    return AutoscaleDecision(target, f"trying {_workers(target)}")


def _most(config: AutoscaleConfig, state: AutoscaleState) -> int:
    """That can be had and is allowed."""
    return config.most if state.free is None else min(config.most, state.workers + state.free)


def _smallest(config: AutoscaleConfig, workers: int) -> int:
    """The smallest size that is as fast as this one: a step takes as long as the worker with the most slices."""
    if not config.slices:
        return workers
    return -(-config.slices // -(-config.slices // workers))


def _down(config: AutoscaleConfig, state: AutoscaleState) -> AutoscaleDecision:
    """Nothing below is known: without it nobody can say whether the last workers pay."""
    target = max(config.least, state.workers // 2)
    return AutoscaleDecision(target, f"trying {_workers(target)}, to see what the others bring")


def _heuristic(goal: Heuristic, config: AutoscaleConfig, state: AutoscaleState) -> AutoscaleDecision:
    done = state.step - state.changed_step
    if done < goal.steps:
        return AutoscaleDecision(state.workers, f"waiting: {done} of {quantity(goal.steps, 'step')} with {_workers(state.workers)}")
    by, why = goal.by, f"{goal.by:+d} every {quantity(goal.steps, 'step')}"
    if goal.climb:
        here, below = state.measured.get(state.workers), state.measured.get(state.workers - goal.by)
        if here is not None and below is not None and here.rate <= below.rate:
            by, why = -goal.by, f"{_workers(state.workers)} not faster than {state.workers - goal.by}"
        above = state.measured.get(state.workers + goal.by)
        slower = here is not None and above is not None and above.rate <= here.rate
        if by > 0 and slower and above is not None and state.now_s - above.at_s <= config.expiry_s:
            return AutoscaleDecision(state.workers, f"{_workers(state.workers + goal.by)} were not faster")
    target = min(max(state.workers + by, config.least), _most(config, state))
    if target == state.workers:
        bound = f"the bound of {config.least}:{config.most}" if target == config.most or by < 0 else "all that can be had"
        return AutoscaleDecision(target, f"{_workers(target)}: {bound}")
    return AutoscaleDecision(target, why)


def _guarded(config: AutoscaleConfig, state: AutoscaleState, wish: AutoscaleDecision) -> AutoscaleDecision:
    """Refuses a change that cannot pay for itself before the job ends.

    The best that more workers can do is linear scaling from the moment they train; the best that fewer can do is the
    same speed at less cost. Either way the pause, and for growth the start and the measurement that follows, have to be
    earned back.
    """
    if wish.workers == state.workers or state.remaining_s is None:
        return wish
    if wish.workers < state.workers:
        earned_s = state.remaining_s * (1 - wish.workers / state.workers)
        spent_s = state.pause_s
    else:
        earned_s = (state.remaining_s - state.startup_s) * (1 - state.workers / wish.workers)
        spent_s = state.pause_s + state.startup_s + config.window_s
    if earned_s > spent_s:
        return wish
    return AutoscaleDecision(
        state.workers,
        f"no change in the last {state.remaining_s:.1f} s: {_workers(wish.workers)} could "
        f"earn {max(0.0, earned_s):.1f} s and cost {spent_s:.1f} s",
    )
