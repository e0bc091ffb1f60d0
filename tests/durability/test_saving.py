"""One worker and its disk: every step of a save, every way in which it can fail, and what is left afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from saving_script import GUARD_S, STEPS, alone, arguments, wish

from stretto.core.errors import Refused, Stale, UsageError
from stretto.core.manifest import NAME
from stretto.train.checkpoint.catalog import CheckpointEntry, check_fence, choose, claim, entries, raise_fence, sound, verify
from stretto.train.checkpoint.storage import CheckpointStorage, LocalStorage, open_storage


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a life without checkpoints."""
    return alone(tmp_path_factory.mktemp("reference"), args=arguments(pause_s=0.0)).digest


def live(tmp_path: Path, **options: object) -> LocalStorage:
    """A vault with the checkpoints of one whole life."""
    ended = alone(tmp_path, checkpoint=wish(tmp_path / "saved", **options))
    assert ended.code == 0, ended.output
    return LocalStorage(tmp_path / "saved")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole life's checkpoints, all of them kept."""
    folder = tmp_path_factory.mktemp("stock")
    live(folder, keep=10)
    return folder / "saved"


@pytest.fixture
def vault(stock: Path, tmp_path: Path) -> LocalStorage:
    """A copy of the stock, to be damaged."""
    shutil.copytree(stock, tmp_path / "saved")
    return LocalStorage(tmp_path / "saved")


def resumable(vault: CheckpointStorage) -> list[CheckpointEntry]:
    """What can be gone on from, without the final one."""
    return [entry for entry in entries(vault) if not entry.final]


def resume(tmp_path: Path, step: int, **fields: object) -> dict[str, object]:
    return {"resume": {"url": str(tmp_path / "saved"), "step": step}, **fields}


def test_saving_does_not_change_the_bits_and_any_checkpoint_ends_with_the_same_digest(
    tmp_path: Path, vault: LocalStorage, reference: str
) -> None:
    steps = [entry.step for entry in resumable(vault) if entry.complete]
    assert steps, "nothing was saved"
    for step in {steps[0], steps[-1]}:
        assert alone(tmp_path, args=arguments(pause_s=0.0), **resume(tmp_path, step)).digest == reference
    other = alone(tmp_path, args=arguments(pause_s=0.0, seed=1)).digest
    assert other != reference, "the digest does not see the training"


@pytest.mark.parametrize("place", ["save-copy", "save-write", "save-sync", "save-synced", f"rename-{NAME}", "save-renamed"])
def test_a_kill_at_any_step_of_a_save_leaves_the_checkpoint_absent_or_complete(tmp_path: Path, reference: str, place: str) -> None:
    ended = alone(tmp_path, checkpoint=wish(tmp_path / "saved"), failpoint=f"{place}:2")
    assert ended.killed, f"{place} was not passed: {ended.output}"
    vault = LocalStorage(tmp_path / "saved")
    whole = [entry for entry in resumable(vault) if entry.manifest is not None]
    assert len(whole) == (2 if place == "save-renamed" else 1), [entry.path for entry in entries(vault)]
    for entry in whole:
        assert entry.complete and entry.manifest is not None
        verify(vault, entry.manifest)
    last = choose(vault)
    assert last is not None
    again = alone(
        tmp_path, args=arguments(pause_s=0.01), checkpoint=wish(tmp_path / "saved", life=2), **resume(tmp_path, last.step)
    )
    assert again.digest == reference
    assert all(entry.complete for entry in entries(vault)), "leftovers of the killed save are still there"


def test_a_short_history_is_kept_and_the_last_complete_one_is_never_deleted(tmp_path: Path) -> None:
    left = resumable(live(tmp_path, keep=1))
    assert len(left) == 1 and left[0].complete, [entry.path for entry in left]
    assert left[0].step > 4, "only the first save was ever made: nothing was replaced"


def test_times_instead_of_steps(tmp_path: Path) -> None:
    vault = live(tmp_path, every_steps=None, every_s=0.1, keep=10)
    assert resumable(vault), "nothing was saved within many intervals"


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[len(data) // 2 :]
    elif how == "flipped":
        data[-100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "flipped", "swapped", "missing"])
def test_a_shard_that_is_not_what_was_written_is_named_and_the_previous_checkpoint_offered(
    tmp_path: Path, vault: LocalStorage, how: str
) -> None:
    *_, before, last = resumable(vault)
    assert last.manifest is not None and before.manifest is not None
    shard = Path(last.path) / last.manifest.shards[0].file
    if how == "swapped":
        shard.write_bytes((Path(before.path) / before.manifest.shards[0].file).read_bytes())
    elif how == "missing":
        shard.unlink()
    else:
        damage(shard, how)
    ended = alone(tmp_path, **resume(tmp_path, last.step))
    assert ended.code == 1
    assert str(shard) in ended.output
    assert "Traceback" not in ended.output
    assert str(before.step) in ended.output
    entry, problems = sound(vault)
    assert entry is not None and entry.step == before.step
    assert any(str(shard) in problem for problem in problems)
    with pytest.raises(Refused, match=shard.name):
        verify(vault, last.manifest)


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_manifest_is_named_and_the_previous_checkpoint_offered(vault: LocalStorage, how: str) -> None:
    *_, before, last = resumable(vault)
    damage(Path(last.path) / NAME, how)
    with pytest.raises(UsageError, match=f"{NAME} is damaged.*step {before.step}"):
        choose(vault)
    entry, _ = sound(vault)
    assert entry is not None and entry.step == before.step


def test_a_manifest_that_belongs_to_another_step_is_named_and_the_previous_checkpoint_offered(vault: LocalStorage) -> None:
    """Every byte of it is right, and so is every byte of the shards that it names: they are those of another folder."""
    *_, before, last = resumable(vault)
    shutil.copy(Path(before.path) / NAME, Path(last.path) / NAME)
    with pytest.raises(UsageError, match=rf"{last.folder}/{NAME} does not belong there.*{before.folder}.*--step {before.step}"):
        choose(vault)
    entry, _ = sound(vault)
    assert entry is not None and entry.step == before.step


def test_a_checkpoint_of_another_run_is_neither_resumed_nor_deleted(tmp_path: Path, vault: LocalStorage, reference: str) -> None:
    before = choose(vault)
    assert before is not None and before.manifest is not None
    other = replace(before.manifest, run="other", run_id="other-1", step=before.step + 1)
    shutil.copytree(before.path, tmp_path / "saved" / other.folder)
    (tmp_path / "saved" / other.folder / NAME).write_bytes(other.encode())
    with pytest.raises(UsageError, match=f"{other.folder}/{NAME} does not belong there: it is of another run"):
        choose(vault)
    again = alone(
        tmp_path,
        args=arguments(pause_s=0.0),
        checkpoint=wish(tmp_path / "saved", life=2, keep=1),
        **resume(tmp_path, resumable(vault)[0].step),
    )
    assert again.digest == reference
    assert (tmp_path / "saved" / other.folder / NAME).exists(), "what is not ours was deleted"


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "sub"):
        with pytest.raises(UsageError, match="is no folder"):
            claim(LocalStorage(path), run="job", run_id="job-1")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"width": 32}, ["model/0.weight", "[64, 8]", "[32, 8]"]),
        ({"slices": 4}, ["slices is 8 in the checkpoint and 4 here"]),
        ({"seed": 5}, ["seed is 0 in the checkpoint and 5 here", "--allow-mixed"]),
    ],
)
def test_another_job_is_refused_with_the_difference_spelled_out(
    tmp_path: Path, vault: LocalStorage, change: dict[str, int], said: list[str]
) -> None:
    last = choose(vault)
    assert last is not None
    ended = alone(tmp_path, args=arguments(**change), **resume(tmp_path, last.step))  # type: ignore[arg-type]
    assert ended.code == 1
    for words in (*said, last.path):
        assert words in ended.output
    assert "Traceback" not in ended.output


def test_other_bits_can_be_allowed_and_are_recorded(tmp_path: Path, vault: LocalStorage, reference: str) -> None:
    first = resumable(vault)[0].step
    ended = alone(
        tmp_path,
        args=arguments(seed=5),
        checkpoint=wish(tmp_path / "saved", life=2, keep=10),
        **resume(tmp_path, first, allow_mixed=True),
    )
    assert ended.digest != reference
    newest = resumable(vault)[-1].manifest
    assert newest is not None and newest.life == 2 and newest.mixed
    assert "seed is 0 in the checkpoint and 5 here" in newest.extra["allowed"]


def test_a_folder_has_the_checkpoints_of_one_run(tmp_path: Path, vault: LocalStorage) -> None:
    claim(vault, run="job", run_id="job-1")
    with pytest.raises(UsageError, match="has the checkpoints of run 'job', this is run 'other'"):
        claim(vault, run="other", run_id="other-1")
    before = [entry.path for entry in entries(vault)]
    ended = alone(tmp_path, checkpoint=wish(tmp_path / "saved", run_id="other-1"))
    assert ended.code == 0, "training must not end for it"
    assert "this is run 'job'" in ended.output
    assert [entry.path for entry in entries(vault)] == before


def test_a_stale_life_or_roster_cannot_commit(tmp_path: Path, vault: LocalStorage) -> None:
    before = [(entry.step, entry.manifest) for entry in entries(vault)]
    raise_fence(vault, life=2, roster=7)
    check_fence(vault, life=2, roster=7)
    for life, roster in ((2, 6), (1, 9)):
        with pytest.raises(Stale):
            raise_fence(vault, life=life, roster=roster)
    ended = alone(tmp_path, checkpoint=wish(tmp_path / "saved", life=1))
    assert ended.code == 0
    assert "is refused" in ended.output
    assert [(entry.step, entry.manifest) for entry in entries(vault)] == before


@pytest.mark.parametrize("damaged", ["", "[]", "{}", '{"life": "x", "roster": 1}'])
def test_a_damaged_fence_is_written_anew(tmp_path: Path, vault: LocalStorage, damaged: str) -> None:
    (tmp_path / "saved" / "fence.json").write_text(damaged)
    raise_fence(vault, life=2, roster=7)
    with pytest.raises(Stale):
        check_fence(vault, life=2, roster=6)


@pytest.mark.parametrize("damaged", ["", "[]", "[1]"])
def test_a_damaged_owner_is_named_with_the_fix(tmp_path: Path, vault: LocalStorage, damaged: str) -> None:
    (tmp_path / "saved" / "owner.json").write_text(damaged)
    with pytest.raises(UsageError, match=r"owner\.json is damaged"):
        claim(vault, run="job", run_id="job-1")


def test_a_save_that_fails_for_an_unknown_reason_is_said_and_nobody_waits_for_it(tmp_path: Path, reference: str) -> None:
    ended = alone(tmp_path, checkpoint=wish(tmp_path / "saved", grace_s=GUARD_S), script=BROKEN + SCRIPT_HEAD)
    assert ended.digest == reference
    assert "step-00000004 was given up: ZeroDivisionError" in ended.output
    assert not entries(LocalStorage(tmp_path / "saved"))


def test_a_removed_folder_costs_nothing_but_the_checkpoints_in_it(tmp_path: Path, reference: str) -> None:
    removed = SCRIPT_THAT_REMOVES.replace("FOLDER", str(tmp_path / "saved"))
    ended = alone(tmp_path, checkpoint=wish(tmp_path / "saved"), script=removed)
    assert ended.digest == reference
    assert [entry for entry in entries(LocalStorage(tmp_path / "saved")) if entry.complete], "no save after the folder was gone"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: a read-only folder cannot be made with permissions")
def test_a_folder_without_permission_is_said_and_training_goes_on(tmp_path: Path, reference: str) -> None:
    (tmp_path / "saved").mkdir(mode=0o500)
    ended = alone(tmp_path, checkpoint=wish(tmp_path / "saved"))
    assert ended.digest == reference
    assert "could not be written" in ended.output


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    where = tmp_path / "small"
    where.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_full_disk_in_the_middle_of_a_save_is_said_and_training_goes_on(tmp_path: Path, small: Path, reference: str) -> None:
    plain = alone(tmp_path, args=arguments(width=300, pause_s=0.0)).digest
    ended = alone(tmp_path, args=arguments(width=300), checkpoint=wish(small / "saved"))
    assert ended.digest == plain
    assert "No space left on device" in ended.output and str(small / "saved") in ended.output
    vault = LocalStorage(small / "saved")
    assert not [entry for entry in entries(vault) if entry.manifest is not None]
    fits = alone(tmp_path, checkpoint=wish(small / "saved", keep=1))
    assert fits.digest == reference
    assert [entry for entry in entries(vault) if entry.complete], "what the full disk left behind is in the way"


def test_a_read_only_file_system_is_said_and_the_last_checkpoint_stays(tmp_path: Path, small: Path, reference: str) -> None:
    assert alone(tmp_path, checkpoint=wish(small / "saved", keep=1)).code == 0
    last = choose(LocalStorage(small / "saved"))
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    ended = alone(tmp_path, checkpoint=wish(small / "saved", life=2))
    assert ended.digest == reference
    assert "Read-only file system" in ended.output
    again = choose(LocalStorage(small / "saved"))
    assert last is not None and again is not None and again.manifest == last.manifest


def test_a_slow_place_costs_checkpoints_and_neither_steps_nor_memory(tmp_path: Path, reference: str) -> None:
    (tmp_path / "pace").write_text("0.3")
    slow = SLOW.replace(":PACE", f":{tmp_path / 'pace'}") + SCRIPT_HEAD
    ended = alone(tmp_path, checkpoint=wish(tmp_path / "saved", every_steps=1, keep=50), script=slow)
    assert ended.digest == reference
    assert "is still under way" in ended.output
    saved = [entry.step for entry in entries(LocalStorage(tmp_path / "saved")) if entry.complete]
    assert 1 <= len(saved) < STEPS, saved


def test_any_file_system_that_fsspec_knows_will_do(tmp_path: Path, reference: str) -> None:
    url = f"dir://saved::file://{tmp_path}"
    from stretto.train.checkpoint.storage import RemoteStorage

    assert isinstance(open_storage(url), RemoteStorage)
    assert alone(tmp_path, checkpoint=wish(url, keep=2)).digest == reference
    vault = open_storage(url)
    found = [entry for entry in resumable(vault) if entry.complete]
    assert 1 <= len(found) <= 2
    ended = alone(tmp_path, args=arguments(pause_s=0.0), resume={"url": url, "step": found[-1].step})
    assert ended.digest == reference


def test_a_place_that_nobody_knows_is_refused_with_the_fix() -> None:
    with pytest.raises(UsageError, match="nowhere://x cannot be used"):
        open_storage("nowhere://x")


SCRIPT_HEAD = Path(__file__).with_name("saving_script.py").read_text().split('SCRIPT = """')[1].split('"""')[0]

SCRIPT_THAT_REMOVES = SCRIPT_HEAD.replace(
    "        time.sleep(PAUSE)\n",
    """
        if job.step == 9:
            import pathlib, shutil
            folder = pathlib.Path("FOLDER")
            while not list(folder.glob("*/manifest.json")): time.sleep(0.01)
            while folder.exists(): shutil.rmtree(folder, ignore_errors=True)
        time.sleep(PAUSE)
""",
)

SLOW = """
import os
os.environ["STRETTO_FAILPOINT_PACE"] = "save-write:PACE"
"""

BROKEN = """
from stretto.core.manifest import Manifest
def encode(self):
    1 // 0
Manifest.encode = encode
"""
