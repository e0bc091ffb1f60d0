"""Runs and checkpoints of older versions stay readable: every verb that reads them, and training that goes on from them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from stored_files import VERSIONS, Stored, copied

SAMPLES, STEPS, PAIR_STEPS = 64 * 12, 4 * 12, 4 * 4


def weights(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def test_show_ps_and_explain_tell_the_whole_run(stored: Stored) -> None:
    shown = stored.json("show", "finished", "--json")
    assert (shown["state"], shown["steps"], shown["digest"]) == ("finished", STEPS, stored.expected["digest"])
    assert shown["asked"]["version"] == stored.version
    assert [switch["cause"] for switch in shown["switches"]] == ["start", "join", "join", "rescue", "join", "start"]
    table = stored.output("show", "finished")
    assert "rescue" in table and stored.expected["digest"] in table
    runs = {run["name"]: run["state"] for run in stored.json("ps", "--json")}
    assert runs == {"finished": "finished", "interrupted": "lost", "pair-h1": "finished", "pair-h2": "finished"}
    assert "from 1 to 3 workers" in stored.output("explain", "finished")
    assert stored.expected["digest"] in stored.output("logs", "finished")


def test_audit_proves_every_sample_across_a_kill_and_a_resume(stored: Stored) -> None:
    audited = stored.output("audit", "finished")
    assert f"{STEPS} committed steps, 12 finished epochs, {SAMPLES} samples" in audited and "holds" in audited


def test_audit_misses_a_step_that_is_not_in_the_journal(stored: Stored) -> None:
    """A control: the old lines are really read."""
    journal = stored.journal("finished")
    journal.write_text("".join(line for line in journal.read_text().splitlines(keepends=True) if '"commit","step":3,' not in line))
    done = stored.call("audit", "finished")
    assert done.returncode != 0 and "holds" not in done.stdout


@pytest.mark.parametrize("words", [("runs/pair-h1", "runs/pair-h2"), ("pair",)])
def test_audit_reads_the_journals_of_two_hosts_together(stored: Stored, words: tuple[str, ...]) -> None:
    assert f"{PAIR_STEPS} committed steps, 4 finished epochs, 256 samples" in stored.output("audit", *words)


def test_plot_draws_the_run(stored: Stored) -> None:
    stored.output("plot", "finished", "-o", "curve.png")
    assert (stored.folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_checkpoints_lists_them_whole(stored: Stored) -> None:
    listed = stored.json("checkpoints", "finished", "--json")
    assert [(entry["step"], entry["state"]) for entry in listed] == [
        (42, "complete"),
        (45, "complete"),
        (48, "final"),
        (48, "complete"),
    ]
    assert not any(entry["problem"] for entry in listed)


def test_export_writes_the_same_weights_from_the_checkpoints_of_every_version(tmp_path: Path) -> None:
    exported = []
    for version in VERSIONS:
        stored = copied(version, tmp_path / version)
        stored.output("export", "finished", "weights.safetensors")
        exported.append(weights(stored.folder / "weights.safetensors"))
    header, data = exported[0]
    assert {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"} == {"weight": [1, 4], "bias": [1]}
    assert all(other == data for _, other in exported) and any(data)


def test_a_damaged_shard_is_refused(stored: Stored) -> None:
    """A control: the old shards are really compared with their sums."""
    for shard in (stored.folder / "saved" / "finished").rglob("*.safetensors"):
        shard.write_bytes(shard.read_bytes()[:-1] + b"\x55")
    done = stored.call("export", "finished", "weights.safetensors")
    assert done.returncode != 0 and "SHA-256" in done.stdout + done.stderr


def test_a_finished_run_is_not_resumed(stored: Stored) -> None:
    done = stored.call("resume", "finished")
    assert done.returncode == 2 and "has finished" in done.stderr


@pytest.mark.slow
def test_replay_ends_with_the_old_digest(stored: Stored, same_bits: None) -> None:
    stored.output("run", "--replay", "finished", "--name", "again", "--quiet")
    assert stored.result("again")["digest"] == stored.expected["digest"]


def test_resume_from_an_old_checkpoint_ends_with_the_digest_of_an_uninterrupted_run(stored: Stored, same_bits: None) -> None:
    stored.output("resume", "interrupted", "--quiet")
    result = stored.result("interrupted")
    assert (result["state"], result["digest"]) == ("finished", stored.expected["digest"])
    lines = [json.loads(line) for line in stored.journal("interrupted").read_text().splitlines()]
    assert [line["life"] for line in lines if line["kind"] == "resume"] == [2], "it goes on; it does not begin anew"
    assert f"{STEPS} committed steps, 12 finished epochs, {SAMPLES} samples" in stored.output("audit", "interrupted")
