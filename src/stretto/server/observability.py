"""Alarms, and metrics for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


@dataclass(frozen=True, slots=True)
class Raised:
    """A raised alarm: since when, and how often it was raised again."""

    name: str
    text: str
    since: float
    count: int = 1


@dataclass(slots=True)
class Alarms:
    """Raised alarms, by name: problems that need attention, until they are cleared."""

    raised: dict[str, Raised] = field(default_factory=dict[str, Raised])

    def up(self, name: str, text: str, *, now: float) -> bool:
        """True if the alarm is new or its text has changed."""
        before = self.raised.get(name)
        self.raised[name] = replace(before, text=text, count=before.count + 1) if before else Raised(name, text, now)
        return before is None or before.text != text

    def down(self, name: str) -> bool:
        """True if the alarm was raised."""
        return self.raised.pop(name, None) is not None


SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LONG = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 86400.0)


@dataclass(slots=True)
class PrometheusMetrics:
    """What `/metrics` shows. The registry is its own: two servers in one process would otherwise share counters."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    jobs: Gauge = field(init=False)
    slots: Gauge = field(init=False)
    used: Gauge = field(init=False)
    goodput: Gauge = field(init=False)
    streams: Gauge = field(init=False)
    alarms: Gauge = field(init=False)
    lost: Counter = field(init=False)
    events: Counter = field(init=False)
    failures: Counter = field(init=False)
    restarts: Counter = field(init=False)
    wait: Histogram = field(init=False)
    decision: Histogram = field(init=False)
    pause: Histogram = field(init=False)

    def __post_init__(self) -> None:
        at = self.registry
        self.jobs = Gauge("stretto_jobs", "Jobs by state.", ["state"], registry=at)
        self.slots = Gauge("stretto_slots", "Slots of all nodes.", registry=at)
        self.used = Gauge("stretto_slots_used", "Slots that belong to jobs.", registry=at)
        self.goodput = Gauge("stretto_goodput_samples_per_second", "Useful samples a second of all jobs together.", registry=at)
        self.streams = Gauge("stretto_streams", "Open event streams.", registry=at)
        self.alarms = Gauge("stretto_alarms", "Alarms that are up.", registry=at)
        self.lost = Counter("stretto_samples_lost", "Samples that no committed step had; stays 0.", registry=at)
        self.events = Counter("stretto_events", "Events written.", registry=at)
        self.failures = Counter("stretto_policy_failures", "Decisions that kept the old allocation.", registry=at)
        self.restarts = Counter("stretto_job_restarts", "Jobs started again after their processes were lost.", registry=at)
        self.wait = Histogram("stretto_queue_wait_seconds", "From submission to the first step.", buckets=LONG, registry=at)
        self.decision = Histogram("stretto_decision_seconds", "Time of a decision.", buckets=SHORT, registry=at)
        self.pause = Histogram("stretto_resize_pause_seconds", "Pause of a job that changed its size.", buckets=SHORT, registry=at)

    def text(self) -> bytes:
        return generate_latest(self.registry)
