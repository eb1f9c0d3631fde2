"""Runs functions in forked or spawned processes."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def in_process(method: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process started by `fork` or `spawn`, and return its result."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        if method == "spawn":
            return pool.submit(function, *arguments).result(timeout=120)
        return pool.submit(_forked, function, arguments).result(timeout=120)


def _forked(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    function(*arguments)  # used in this process before the child uses it
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)
