"""What all workers of a job must have alike for their steps to be the same steps: compared before a worker is admitted."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, cast

import torch

from stretto.core.source import CODE_OF
from stretto.train.data.dataset_checks import identity
from stretto.train.script_checks.variables import LIBRARIES, script_frames
from stretto.train.sharing.state_codec import spec

if TYPE_CHECKING:
    from stretto.batching.batch_policies import Policy
    from stretto.train.batch_controller import BatchController
    from stretto.train.data.loader import Loader
    from stretto.train.sharing.shared_objects import SharedObjects


def contract(*, seed: int, slices: int, loaders: list[Loader], batches: BatchController, shared: SharedObjects) -> dict[str, str]:
    """The terms by their names in the script, with their values."""
    terms = {
        "stretto.join(seed=…)": str(seed),
        "slices": str(slices),
        "the number of job.loader calls": str(len(loaders)),
    }
    for loader in loaders:
        described = _loader(loader, batches.policy(loader))
        terms.update({f"{name} of job.loader number {loader.number}": value for name, value in described.items()})
    rule = batches.rule
    terms["job.share(lr_rule=…)"] = _plain(rule) if rule is not None else "none"
    for name, shared_object in shared.objects.items():
        terms[f"job.share({name}=…)"] = _kind(shared_object)
    return terms


def sha(terms: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()[:16]


def _loader(loader: Loader, policy: Policy | None) -> dict[str, str]:
    terms = {
        "the number of samples": str(loader.source.size),
        "batch_size": str(policy.reference if policy is not None else loader.batch),
        "tail": loader.tail,
        "train": str(loader.train),
        "shuffle": str(loader.source.shuffle),
        "reduction": loader.reduction,
        **identity(loader.dataset),
    }
    return {**terms, "the batch policy": _plain(policy)} if policy is not None else terms


def _plain(value: object) -> str:
    """As the script wrote it; without addresses in memory, which differ between processes."""
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def _kind(shared_object: object) -> str:
    """What a shared object is. The optimizer's numbers are not compared: newcomers get them with the state."""
    name = type(shared_object).__name__
    if isinstance(shared_object, torch.nn.Module):
        specs = [[path, *spec(tensor)] for path, tensor in shared_object.state_dict().items() if isinstance(tensor, torch.Tensor)]
        numbers = sum(tensor.numel() for tensor in shared_object.state_dict().values() if isinstance(tensor, torch.Tensor))
        sha = hashlib.sha256(json.dumps(specs).encode()).hexdigest()[:8]
        return f"a {name} with {numbers} numbers in {len(specs)} tensors (their names and shapes: {sha})"
    if isinstance(shared_object, torch.optim.Optimizer):
        return f"a {name} of {', '.join(str(len(group['params'])) for group in shared_object.param_groups)} parameters"
    return f"a {name}"


MAIN = ("__main__", "__mp_main__")
MOST = 100
"""Modules that are looked at."""


def code_terms() -> dict[str, str]:
    """The hash of each file. Another Python compiles another code, so its version is in the name: what has no namesake on the
    other worker is not compared."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    terms = {
        f"{CODE_OF}{os.path.basename(frame.f_code.co_filename)} ({python})": _hash(frame.f_code)
        for frame in script_frames()
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    }
    for name, path in sorted(_own_modules())[:MOST]:
        code = _code(name, path)
        if code is not None:
            terms[f"{CODE_OF}the module {name} ({python})"] = _hash(code)
    return terms


def _own_modules() -> Iterator[tuple[str, str]]:
    """Names and files. Most of thousands of modules are libraries: told from the beginning of their paths, before anything else."""
    folders = tuple(os.path.join(os.path.abspath(folder), "") for folder in (os.path.dirname("".join(sys.argv[:1])), "."))
    modules: dict[str, object] = dict(sys.modules)  # scripts and lazy imports may put anything there
    for name, module in modules.items():
        path = vars(module).get("__file__") if isinstance(module, ModuleType) else None  # a lazy module would import itself
        if isinstance(path, str) and path.endswith(".py") and name not in MAIN and not path.startswith(LIBRARIES):
            path = os.path.abspath(path)
            if path.startswith(folders) and not path.startswith(LIBRARIES):
                yield name, path


def _code(name: str, path: str) -> CodeType | None:
    """As the file is now: a change within the seconds since its import is not seen."""
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        loader = spec.loader if spec is not None else None
        return loader.get_code(name) if isinstance(loader, SourceFileLoader) else None
    except (OSError, SyntaxError, ValueError, ImportError, AttributeError):
        return None


def _hash(code: CodeType) -> str:
    return hashlib.blake2b(_text(code).encode(), digest_size=6).hexdigest()


def _text(value: object) -> str:
    """Everything that decides what code does, and no more: neither lines nor the file's place."""
    if isinstance(value, CodeType):
        return repr(
            (
                value.co_name,
                value.co_code,
                value.co_names,
                value.co_varnames,
                value.co_freevars,
                value.co_flags,
                value.co_argcount,
                value.co_kwonlyargcount,
                value.co_exceptiontable,
                [_text(constant) for constant in value.co_consts],
            )
        )
    if isinstance(value, tuple):
        return repr([_text(constant) for constant in cast("tuple[object, ...]", value)])
    return repr(sorted(map(repr, cast("frozenset[object]", value)))) if isinstance(value, frozenset) else repr(value)
