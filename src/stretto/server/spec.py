"""The spec of a job: the one shape of job files, `stretto submit` and `POST /v1/jobs`.

It is SkyPilot's shape (`name, workdir, envs, resources, run`) plus `elastic`, `priority`, `deadline` and
`price_limit`. Unknown keys are errors everywhere: a misspelt limit that is silently ignored costs somebody a night of
training.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from stretto.core.text import quantity

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Text = Annotated[str, StringConstraints(max_length=8192)]
Argument = Annotated[str, StringConstraints(max_length=4096)]
T = TypeVar("T")

MOST_WORKERS = 4096
MOST_SPEC = 64 << 10
"""Bytes of a whole job file as JSON. A server keeps all of its jobs in memory, and there may be thousands."""
MASK = "********"
SECRET = re.compile(r"(secret|token|passw|credential|api_?key|private|auth|_key$|^key$|cookie|session|dsn)", re.IGNORECASE)


class Strict(BaseModel):
    """Unknown keys are errors; texts with a NUL are too, because no process argument can carry one."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nul(cls, value: object) -> object:
        if _has_nul(value):
            raise ValueError("a text contains a NUL or half a surrogate pair, which no argument or path can carry: remove it")
        return value


def _has_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, dict):
        return any(_has_nul(key) or _has_nul(item) for key, item in cast("dict[object, object]", value).items())
    return isinstance(value, list) and any(_has_nul(item) for item in cast("list[object]", value))


class Resources(Strict):
    """What one worker needs."""

    slots: int = Field(default=1, ge=1, le=1, description="slots a worker: a slot is a place for one worker")
    node_type: Name | None = Field(
        default=None,
        description="only on nodes of this type; without enough of them the job waits, and `stretto explain` says so",
    )


class Autoscale(Strict):
    """How a job sizes itself within the policy's allocation."""

    efficiency: float | None = Field(
        default=None, gt=0, le=1, description="grow while each added worker brings this much of what one without it brings"
    )


class Stage(Strict):
    """One line of a scripted scaling plan: from this step on, this many workers."""

    step: int = Field(ge=0, le=10**12)
    workers: int = Field(ge=1, le=MOST_WORKERS)


class Elastic(Strict):
    """The limits inside which the number of workers may change."""

    min: int = Field(default=1, ge=1, le=MOST_WORKERS)
    max: int = Field(default=1, ge=1, le=MOST_WORKERS)
    slices: int | None = Field(
        default=None, ge=1, le=MOST_WORKERS, description="bounds `max`; what the script says counts if this is absent"
    )
    batch: Literal["fixed", "linear", "adaptive"] = Field(
        default="fixed", description="of a script with a plain batch_size: so much in all, so much a worker, or by measured goodput"
    )
    autoscale: Autoscale | None = Field(default=None, description="grow only as far as it pays, inside what the policy gives")
    plan: list[Stage] = Field(default_factory=list[Stage], max_length=256, description="a scripted scaling plan, for experiments")

    @model_validator(mode="after")
    def _ordered(self) -> Elastic:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}: lower min or raise max")
        if self.slices is not None and self.max > self.slices:
            raise ValueError(
                f"slices={self.slices} allows at most {quantity(self.slices, 'worker')}, max={self.max}: raise slices or lower max"
            )
        if any(later.step <= earlier.step for earlier, later in zip(self.plan, self.plan[1:], strict=False)):
            raise ValueError("the steps of plan have to grow from line to line: sort them and remove doubles")
        for stage in self.plan:
            if not self.min <= stage.workers <= self.max:
                raise ValueError(
                    f"plan wants {quantity(stage.workers, 'worker')} at step {stage.step}, allowed are {self.min} to {self.max}: "
                    "change the plan or the limits"
                )
        return self


class JobSpec(Strict):
    """A script, its arguments and its limits."""

    name: Name = Field(description="small letters, digits and hyphens, at most 48")
    workdir: Text | None = Field(
        default=None, description="an existing folder on the cluster; the server's own folder for the job if absent"
    )
    envs: dict[EnvName, Text] = Field(
        default_factory=dict, max_length=256, description="environment; values that look secret are masked"
    )
    resources: Resources = Field(default_factory=Resources)
    run: list[Argument] | Text = Field(
        description="`[python, train.py, --lr, 0.1]`, or the same as a text; a text with more in it is run by the user's shell"
    )
    plain: bool = Field(default=False, description="run it as it is, as one process that stretto neither starts nor scales")
    elastic: Elastic = Field(default_factory=Elastic)
    priority: int = Field(default=0, ge=-100, le=100, description="higher goes first")
    deadline: float | None = Field(default=None, ge=0, le=10**11, description="unix seconds by which the job should have finished")
    price_limit: float | None = Field(
        default=None, ge=0, le=10**9, description="what the job may cost, in the units of the nodes' prices"
    )
    preemptible: bool = Field(default=True, description="may be set back to the queue when somebody more important needs its slots")
    restarts: int = Field(
        default=3, ge=0, le=100, description="how often lost processes are replaced (all, or some workers) before it has failed"
    )
    ready_timeout_s: float = Field(default=600, ge=1, le=86400, description="a job without a first step after this has failed")
    steps: int | None = Field(default=None, ge=1, le=10**12, description="how many steps it will take, if known: helps to plan")

    @field_validator("run", mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        """YAML reads `--lr, 0.1` as a number: an argument is a text."""
        if isinstance(value, list):
            words = cast("list[object]", value)
            return [str(word) if isinstance(word, int | float) and not isinstance(word, bool) else word for word in words]
        return value

    @field_validator("run")
    @classmethod
    def _something(cls, value: list[str] | str) -> list[str] | str:
        if not value or (isinstance(value, str) and not value.strip()):
            raise ValueError("run is empty: give an argument list such as [python, train.py]")
        if isinstance(value, list) and (len(value) > 1024 or not value[0]):
            count = quantity(len(value), "argument")
            raise ValueError(f"run has {count}, the first is {value[0]!r}: at most 1024, the first not empty")
        return value

    @model_validator(mode="after")
    def _small(self) -> JobSpec:
        if (length := len(self.model_dump_json().encode())) > MOST_SPEC:
            raise ValueError(f"{length} bytes in all, at most {MOST_SPEC}: put long scripts and values into files and name those")
        return self

    @property
    def shell(self) -> bool:
        return isinstance(self.run, str)

    def masked(self) -> JobSpec:
        """A copy without secrets, which may leave the server."""
        return self.model_copy(update={"envs": {key: mask(key, value) for key, value in self.envs.items()}})

    def secrets(self) -> tuple[str, ...]:
        """Values that are masked wherever they appear; very short ones are left out, because they would mask everything."""
        return tuple(
            sorted(
                {value for key, value in self.envs.items() if SECRET.search(key) and len(value) >= 4},
                key=len,
                reverse=True,
            )
        )


def mask(key: str, value: str) -> str:
    return MASK if SECRET.search(key) else value


def scrub(text: str, secrets: tuple[str, ...]) -> str:
    """The text without these values."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def clean(value: T, secrets: tuple[str, ...]) -> T:
    """The same JSON value without these secrets in any of its texts."""
    return cast("T", _clean(value, secrets))


def _clean(value: object, secrets: tuple[str, ...]) -> object:
    if isinstance(value, str):
        return scrub(value, secrets)
    if isinstance(value, dict):
        return {key: _clean(item, secrets) for key, item in cast("dict[str, object]", value).items()}
    return [_clean(item, secrets) for item in cast("list[object]", value)] if isinstance(value, list) else value
