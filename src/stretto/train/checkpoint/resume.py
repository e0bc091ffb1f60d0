"""Where the job and its checkpoints meet: the saver that was asked for, and the state that the job begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stretto.core.version import VERSION
from stretto.train.checkpoint.reader import load
from stretto.train.checkpoint.saver import CheckpointConfig, Saver
from stretto.train.checkpoint.snapshot import identify
from stretto.train.entry.fingerprint import fingerprint

if TYPE_CHECKING:
    from stretto.train.job import Job


def open_saver(job: Job) -> Saver | None:
    """None where nobody asked for checkpoints. Called once the script has made everything, before any state has come."""
    wish = job.options.get("checkpoint")
    return Saver(job, CheckpointConfig(**wish), _identity(job)) if wish else None


def resume(job: Job, saver: Saver | None) -> dict[str, Any] | None:
    """Gives the shared objects the state of the checkpoint to go on from. Its place; None where the script begins anew."""
    if not job.options.get("resume"):
        return None
    own = _identity(job)
    manifest, place, allowed = _read(job, own)
    job._admission.reload = lambda: _read(job, own)[1]
    if saver is not None:
        saver.saved = manifest.step
    if allowed or manifest.mixed:
        told = allowed or str(manifest.extra.get("allowed", ""))
        job._telling.say(
            "event", what="mixed", text=f"went on from step {manifest.step} although {told}: the result is no longer the same bits"
        )
        if saver is not None:
            saver.mixed = told
    return place


def _read(job: Job, own: Any) -> tuple[Any, dict[str, Any], str]:
    wanted: dict[str, Any] = job.options["resume"]
    manifest, tensors, allowed = load(
        wanted["url"], step=int(wanted["step"]), own=own, room=job._shared.room, allow_mixed=bool(job.options.get("allow_mixed"))
    )
    return manifest, {**job._shared.load(manifest.skeleton, tensors), "save": 0}, allowed


def _identity(job: Job) -> Any:
    return identify(job, version=VERSION, fingerprint=fingerprint())
