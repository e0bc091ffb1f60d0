"""What all workers of a job must have alike for their steps to be the same steps: compared before a worker is admitted."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch

from stretto.train.data.dataset_identity import identity
from stretto.train.sharing.state_codec import spec

if TYPE_CHECKING:
    from stretto.batching.batch_policies import Policy
    from stretto.train.batch_controller import BatchController
    from stretto.train.data.loader import Loader
    from stretto.train.sharing.shared_objects import SharedObjects


def contract(*, seed: int, slices: int, loaders: list[Loader], batches: BatchController, shared: SharedObjects) -> dict[str, str]:
    """By the words of the script: each name with its value."""
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


def _plain(one: Any) -> str:
    """As the script wrote it; without addresses in memory, which differ between processes."""
    text = repr(one)
    return type(one).__name__ if " at 0x" in text else text


def _kind(one: Any) -> str:
    """What a shared object is. The optimizer's numbers are not compared: newcomers get them with the state."""
    name = type(one).__name__
    if isinstance(one, torch.nn.Module):
        specs = [[path, *spec(tensor)] for path, tensor in one.state_dict().items() if isinstance(tensor, torch.Tensor)]
        numbers = sum(tensor.numel() for tensor in one.state_dict().values() if isinstance(tensor, torch.Tensor))
        sha = hashlib.sha256(json.dumps(specs).encode()).hexdigest()[:8]
        return f"a {name} with {numbers} numbers in {len(specs)} tensors (their names and shapes: {sha})"
    if isinstance(one, torch.optim.Optimizer):
        return f"a {name} of {', '.join(str(len(group['params'])) for group in one.param_groups)} parameters"
    return f"a {name}"
