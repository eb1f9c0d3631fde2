"""Work done in another process, forked where nothing runs that must not be forked, or spawned."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def in_process(method: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process made by `fork` or `spawn`, and give what it returns."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        if method == "spawn":
            return pool.submit(function, *arguments).result(timeout=120)
        return pool.submit(_forked, function, arguments).result(timeout=120)


def _forked(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    function(*arguments)  # used here before it is used there
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)
