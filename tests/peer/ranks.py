"""Processes for the peer's distributed tests, which import these names from a module that its archive leaves out."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

__all__ = [
    "_get_distributed_backend",
    "_get_distributed_device_type",
    "_get_rank_device",
    "_set_rank_device",
    "_start_rank_processes",
    "run_distributed",
]


def _get_distributed_device_type() -> str:
    return "cpu"


def _get_distributed_backend() -> str:
    return "gloo"


def _get_rank_device(rank: int) -> torch.device:
    return torch.device("cpu")


def _set_rank_device(rank: int) -> None:
    """The CPU is every rank's device."""


def _start_rank_processes(function: Callable[..., None], args: tuple[Any, ...], nprocs: int) -> None:
    # A fork of a process that has computed gradients cannot; one of a server that has only imported can, and is quick.
    multiprocessing.set_forkserver_preload([function.__module__, "gnomon.models.text"])
    start_processes(function, args=args, nprocs=nprocs, start_method="forkserver")


def run_distributed(world_size: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a function in processes of one gloo group; its first argument is the rank."""
    return lambda function: partial(_run_group, function, world_size)


def _run_group(function: Callable[..., None], world_size: int, *args: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _start_rank_processes(_run_rank, (function, world_size, f"file://{folder}/store", args), world_size)


def _run_rank(rank: int, function: Callable[..., None], world_size: int, store: str, args: tuple[Any, ...]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    try:
        function(rank, *args)
    except BaseException:
        traceback.print_exc()  # before the group falls apart and the others' complaints bury the cause
        raise
    dist.destroy_process_group()
