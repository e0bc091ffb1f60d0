"""The format on paper: how shards are dealt, what a manifest is, what an export looks like to others. No processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import environment
from safetensors import safe_open
from safetensors.torch import load_file

from stretto.core.errors import Refused, ScriptError, UsageError
from stretto.core.manifest import FORMAT, Identity, Manifest, Shard, SharedEntry, Tensor, compare, folder_name, step_of
from stretto.train.checkpoint.catalog import entries, mark, tidy
from stretto.train.checkpoint.export import export
from stretto.train.checkpoint.reader import load
from stretto.train.checkpoint.shard_layout import deal, width
from stretto.train.checkpoint.snapshot import Memory, describe
from stretto.train.checkpoint.storage import LocalStorage
from stretto.train.sharing.state_codec import flatten, unflatten

IDENTITY = Identity(
    seed=0,
    slices=8,
    loaders=({"batch": 16},),
    plan={},
    fingerprint={"threads": 1},
    version="0.1.0",
    objects=(SharedEntry("model", "Linear", True), SharedEntry("optimizer", "AdamW", False)),
)


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "objects": {
            "model": {
                "weight": torch.randn(400, 300),
                "half": torch.randn(7).bfloat16(),
                "none": torch.empty(0, 3),
                "flag": torch.tensor(True),
                "count": torch.tensor(3),
            },
            "optimizer": {
                "state": {0: {"exp_avg": torch.randn(400, 300), "step": torch.tensor(1.0)}},
                "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}],
            },
        },
        "place": {"step": 5},
    }


def write(folder: Path, *, writers: int, step: int = 5, life: int = 1, final: bool = False) -> Manifest:
    """A checkpoint as several writers would make it, in one process."""
    import hashlib

    skeleton, tensors = flatten(state())
    vault, shards, described = LocalStorage(folder), [], describe(skeleton, tensors)
    name = folder_name(step, final=final)
    vault.make(name)
    for writer in range(writers):
        shot = Memory().snapshot(skeleton, tensors, writer=writer, writers=writers)
        data = shot.image.numpy().tobytes()
        file = f"shard-{writer}of{writers}.safetensors"
        vault.put(name, file, data)
        shards.append(Shard(file, len(data), hashlib.sha256(data).hexdigest(), shot.pieces))
    manifest = Manifest(
        run="job",
        run_id="1",
        life=life,
        roster=1,
        step=step,
        tick=step,
        epoch=0,
        identity=IDENTITY,
        skeleton=skeleton,
        tensors=described,
        shards=tuple(shards),
        final=final,
    )
    vault.put(name, "manifest.json", manifest.encode())
    return manifest


def same(one: Any, other: Any) -> bool:
    (a, xs), (b, ys) = flatten(one), flatten(other)
    return a == b and all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(xs, ys, strict=True))


@pytest.mark.parametrize("writers", [1, 2, 3, 7])
def test_what_any_number_of_writers_wrote_is_read_back_bit_for_bit(tmp_path: Path, writers: int) -> None:
    write(tmp_path, writers=writers)
    own = replace(IDENTITY, tensors=tuple(t for t in describe(*flatten(state())) if t.name.startswith("model/")))
    manifest, tensors, allowed = load(str(tmp_path), step=5, own=own, room=lambda _, specs: [None] * len(specs), allow_mixed=False)
    assert not allowed
    assert same(unflatten(manifest.skeleton, tensors), state())


@given(
    st.lists(st.tuples(st.sampled_from(["float32", "bfloat16", "bool", "int64"]), st.integers(0, 400_000)), max_size=8),
    st.integers(1, 9),
)
@settings(max_examples=200, deadline=None)
def test_every_element_is_dealt_to_exactly_one_writer_in_equal_shares(sizes: list[tuple[str, int]], writers: int) -> None:
    tensors = [Tensor(f"t{k}", dtype, (size,)) for k, (dtype, size) in enumerate(sizes)]
    dealt = deal(tensors, writers)
    assert len(dealt) == writers
    row = [(piece.tensor, piece.low, piece.high) for pieces in dealt for piece in pieces]
    seen = [0] * len(tensors)
    for tensor, low, high in row:
        assert low == seen[tensor] < high
        seen[tensor] = high
    assert seen == [tensor.elements for tensor in tensors]
    shares = [sum((piece.high - piece.low) * width(tensors[piece.tensor]) for piece in pieces) for pieces in dealt]
    assert max(shares) <= sum(shares) / writers + 2 * (1 << 18) + 8


def test_a_manifest_survives_the_way_through_json_and_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    manifest = write(tmp_path, writers=2)
    text = manifest.encode()
    assert Manifest.decode(text, path="here") == replace(manifest, identity=replace(IDENTITY, tensors=()))
    refused = 0
    for place in range(0, len(text), 97):
        changed = bytearray(text)
        changed[place] ^= 1
        try:
            again = Manifest.decode(bytes(changed), path="here")
        except Refused:
            refused += 1
        else:
            assert again == Manifest.decode(text, path="here"), "a change of meaning went unnoticed"
    assert refused > 10


def test_a_newer_format_is_refused_with_the_fix(tmp_path: Path) -> None:
    document = json.loads(write(tmp_path, writers=1).encode())
    document["stretto"] = FORMAT + 1
    with pytest.raises(Refused, match="use a newer one"):
        Manifest.decode(json.dumps(document).encode(), path="x")


def test_differences_of_bits_and_of_shape_are_told_apart(tmp_path: Path) -> None:
    manifest = write(tmp_path, writers=1)
    own = replace(IDENTITY, tensors=tuple(t for t in manifest.tensors if t.name.startswith("model/")))
    assert compare(manifest, own).text() == ""
    threads = compare(manifest, replace(own, fingerprint={"torch.get_num_threads()": "2"}, version="9"))
    assert not threads.shape
    assert threads.bits == (
        "torch.get_num_threads() is 1 in the checkpoint and 2 here",
        "stretto is 0.1.0 in the checkpoint and 9 here",
    )
    other = compare(manifest, replace(own, slices=4, objects=own.objects[:1], loaders=({"batch": 32},)))
    assert not other.bits
    assert other.shape == (
        "slices is 8 in the checkpoint and 4 here",
        "job.share(optimizer=…) is AdamW in the checkpoint and missing here",
        "loader 0: batch is 16 in the checkpoint and 32 here",
    )


OLD = {
    "threads": 1,
    "capability": "AVX2",
    "onednn": "",
    "machine": "x86_64",
    "torch": "2.13.0",
    "device": "cpu",
    "deterministic": True,
    "matmul": "highest",
    "dtype": "torch.float32",
}
"""A fingerprint as 0.1.0 wrote it."""
NEW = {
    "torch.get_num_threads()": "1",
    "torch.backends.cpu.get_cpu_capability()": "AVX2",
    "os.environ['ONEDNN_MAX_CPU_ISA']": "",
    "platform.machine()": "x86_64",
    "torch.__version__": "2.13.0",
    "torch.cuda.get_device_name()": "cpu",
    "torch.are_deterministic_algorithms_enabled()": "True",
    "torch.get_float32_matmul_precision()": "highest",
    "torch.get_default_dtype()": "torch.float32",
    "torch.backends.something_newer": "on",
}


def test_a_checkpoint_of_the_first_version_is_gone_on_from_and_compared_by_the_names_of_today(tmp_path: Path) -> None:
    manifest = write(tmp_path, writers=1)
    tensors = tuple(t for t in manifest.tensors if t.name.startswith("model/"))
    old = replace(manifest, identity=replace(IDENTITY, fingerprint=OLD, version="0.1.0"))
    own = replace(IDENTITY, fingerprint=NEW, version="0.2.0", tensors=tensors, loaders=({"batch": 16, "shuffle": True},))
    assert compare(old, own).text() == ""
    double = compare(old, replace(own, fingerprint={**NEW, "torch.get_default_dtype()": "torch.float64"}))
    assert double.bits == ("torch.get_default_dtype() is torch.float32 in the checkpoint and torch.float64 here",)
    card = replace(old, identity=replace(old.identity, fingerprint={**OLD, "device": "a card"}))
    now = {**NEW, "torch.cuda.get_device_name()": "a card", "torch.backends.cudnn.allow_tf32": "True"}
    assert compare(card, replace(own, fingerprint=now)).bits == (
        "torch.backends.cudnn.allow_tf32 is False in the checkpoint and True here",
    ), "0.1.0 switched it off itself"
    newer = replace(old, identity=replace(old.identity, fingerprint=NEW))
    assert compare(newer, replace(own, fingerprint={**NEW, "torch.backends.something_newer": "off"})).bits


@pytest.mark.parametrize("writers", [1, 3])
def test_an_export_has_the_weights_alone_and_is_loadable_without_us(tmp_path: Path, writers: int) -> None:
    manifest = write(tmp_path / "saved", writers=writers)
    out = tmp_path / "out" / "model.safetensors"
    out.parent.mkdir()
    assert export(LocalStorage(tmp_path / "saved"), manifest, out) == out.stat().st_size
    loaded = load_file(out)
    expected = state()["objects"]["model"]
    assert set(loaded) == set(expected)
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    with safe_open(out, "pt") as file:
        assert file.metadata()["stretto.step"] == "5"
    assert os.listdir(out.parent) == ["model.safetensors"]


def test_an_export_is_read_by_torch_distributed_checkpoint(tmp_path: Path) -> None:
    hf = pytest.importorskip("torch.distributed.checkpoint.hf_storage", reason="this torch has no reader of safetensors")
    import torch.distributed.checkpoint as dcp

    manifest = write(tmp_path / "saved", writers=2)
    (tmp_path / "out").mkdir()
    export(LocalStorage(tmp_path / "saved"), manifest, tmp_path / "out" / "model.safetensors")
    expected = state()["objects"]["model"]
    room = {"weight": torch.zeros(400, 300), "half": torch.zeros(7, dtype=torch.bfloat16)}
    dcp.load(room, storage_reader=hf.HuggingFaceStorageReader(str(tmp_path / "out")))
    assert all(torch.equal(room[name], expected[name]) for name in room)


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    manifest = write(tmp_path / "saved", writers=1)
    shard = tmp_path / "saved" / manifest.folder / manifest.shards[0].file
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    with pytest.raises(Refused, match=shard.name):
        export(LocalStorage(tmp_path / "saved"), manifest, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_an_export_to_nowhere_is_said(tmp_path: Path) -> None:
    manifest = write(tmp_path / "saved", writers=1)
    with pytest.raises(UsageError, match="cannot be written"):
        export(LocalStorage(tmp_path / "saved"), manifest, tmp_path / "no" / "such" / "out.safetensors")


def test_what_is_kept(tmp_path: Path) -> None:
    """The newest, those before it up to the number, the final one; not leftovers, not what an earlier life had beyond."""
    for step in (1, 2, 3, 4):
        write(tmp_path, writers=1, step=step)
    write(tmp_path, writers=1, step=9)
    leftover(tmp_path, folder_name(7), life=1, roster=8)
    leftover(tmp_path, folder_name(4, final=True), life=2, roster=1)
    newest = write(tmp_path, writers=1, step=5, life=2)
    assert sorted(tidy(LocalStorage(tmp_path), keep=3, newest=newest)) == [1, 2, 4, 7, 9]
    assert [entry.step for entry in entries(LocalStorage(tmp_path))] == [3, 4, 5]
    final = write(tmp_path, writers=1, step=6, final=True)
    assert tidy(LocalStorage(tmp_path), keep=1, newest=final) == []
    listed = [(entry.step, entry.final) for entry in entries(LocalStorage(tmp_path))]
    assert listed == [(3, False), (4, False), (5, False), (6, True)]


def leftover(folder: Path, name: str, *, life: int, roster: int) -> None:
    """A save that one of two writers has finished its part of."""
    vault = LocalStorage(folder)
    vault.make(name)
    vault.put(name, f"shard-{mark(life=life, roster=roster, writer=1, writers=2)}.safetensors", b"x")


@pytest.mark.parametrize(("life", "roster", "stays"), [(2, 1, True), (2, 4, True), (2, 0, False), (1, 9, False)])
def test_a_save_that_others_have_begun_meanwhile_is_not_tidied_away(tmp_path: Path, life: int, roster: int, stays: bool) -> None:
    """The others see the manifest of a save before the chief has tidied, and begin the last one."""
    newest = write(tmp_path, writers=1, step=5, life=2)
    leftover(tmp_path, folder_name(5, final=True), life=life, roster=roster)
    tidy(LocalStorage(tmp_path), keep=1, newest=newest)
    assert (tmp_path / folder_name(5, final=True)).exists() is stays


def test_a_dtype_that_the_format_lacks_is_refused_by_name() -> None:
    skeleton, tensors = flatten({"objects": {"model": {"wave": torch.zeros(2, dtype=torch.complex128)}}, "place": {}})
    with pytest.raises(ScriptError, match="model/wave has dtype complex128"):
        Memory().snapshot(skeleton, tensors, writer=0, writers=1)


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    assert step_of(folder_name(12)) == 12 and step_of("step-12") is None and step_of("mine") is None
    (tmp_path / "mine").mkdir()
    newest = write(tmp_path, writers=1)
    tidy(LocalStorage(tmp_path), keep=1, newest=newest)
    assert (tmp_path / "mine").is_dir()


def test_the_command_line_reads_and_exports_checkpoints_without_torch(tmp_path: Path) -> None:
    write(tmp_path / "saved", writers=2)
    code = (
        "import sys; from pathlib import Path; import stretto.cli.resume, stretto.cli.checkpoints, stretto.cli.run; "
        "from stretto.train.checkpoint.catalog import sound; from stretto.train.checkpoint.export import export; "
        "from stretto.train.checkpoint.storage import LocalStorage; vault = LocalStorage(Path(sys.argv[1])); "
        "export(vault, sound(vault)[0].manifest, Path(sys.argv[2])); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "saved"), str(tmp_path / "out.safetensors")],
        text=True,
        capture_output=True,
        env=environment(),
        check=True,
    )
    assert done.stdout.strip() == "False"
    assert set(load_file(tmp_path / "out.safetensors")) == set(state()["objects"]["model"])


def test_the_memory_of_a_save_is_kept_for_the_next_one() -> None:
    memory = Memory()
    tensors = [torch.arange(1000.0)]
    images = [memory.snapshot({"tensor": 0}, tensors, writer=0, writers=1).image for _ in range(3)]
    assert len({image.data_ptr() for image in images}) == 1
    larger = memory.snapshot({"tensor": 0}, [torch.arange(9000.0)], writer=0, writers=1).image
    assert larger.numel() > images[0].numel()
    again = memory.snapshot({"tensor": 0}, tensors, writer=0, writers=1).image
    assert again.data_ptr() == larger.data_ptr(), "it shrank, so the next large save would wait for its pages"
