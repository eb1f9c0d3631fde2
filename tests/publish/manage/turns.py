"""Threads that make their requests to a root one at a time, in an order drawn with a seed."""

import random
import threading
from collections.abc import Callable
from typing import Any

from relive.errors import ReliveError
from relive.store.roots.root import Root
from tests.publish.version.example_versions import RecordedRoot


class KilledError(BaseException):
    """The process that a thread stands for was killed."""


class Turns:
    """Runs functions on threads; before each request another one of them may continue.

    `kill` maps the name of a function to the number of the request before which it is killed: it
    makes no further request. What each returned or raised is in `results`.
    """

    def __init__(self, seed: int, kill: dict[str, int] | None = None) -> None:
        self.results: dict[str, Any] = {}
        self.log: list[tuple[str, str, str]] = []
        self._kill = kill or {}
        self._random = random.Random(seed)  # noqa: S311 - for schedules
        # Few changes let one of them do much between two requests of another.
        self._change = self._random.choice([0.03, 0.1, 0.3, 1.0])
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._turn: str | None = None

    def run(self, root: Root, actors: dict[str, Callable[[Root], Any]]) -> None:
        """Run all functions to their end, each with its own view of the root."""
        self._waiting = list(actors)
        threads = [
            threading.Thread(target=self._act, args=(name, root, act), name=name)
            for name, act in actors.items()
        ]
        for thread in threads:
            thread.start()
        with self._changed:
            self._next()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), (thread.name, self.log[-20:])

    def _act(self, name: str, root: Root, act: Callable[[Root], Any]) -> None:
        requests = 0
        main = threading.current_thread()

        def before(verb: str, key: str) -> None:
            nonlocal requests
            if threading.current_thread() is not main:
                return
            self._pause(name)
            requests += 1
            if name in self._kill and requests >= self._kill[name]:
                raise KilledError
            self.log.append((name, verb, key))

        self._await(name)
        try:
            self.results[name] = act(RecordedRoot(root, before))
        except (ReliveError, KilledError) as error:
            self.results[name] = error
        except BaseException as error:
            self.results[name] = error
            raise
        finally:
            with self._changed:
                self._waiting.remove(name)
                self._next()

    def _pause(self, name: str) -> None:
        with self._changed:
            self._next()
        self._await(name)

    def _await(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == name)

    def _next(self) -> None:
        if self._turn not in self._waiting or self._random.random() < self._change:
            self._turn = self._random.choice(self._waiting) if self._waiting else None
        self._changed.notify_all()
