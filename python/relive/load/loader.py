"""Batches for training: sampled, gathered ahead, transformed, in an order that is sure."""

import copy
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Final, NoReturn, Self

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int
from relive.errors import ClosedError, InvalidError, InvalidTypeError
from relive.load.draws import Place, resume
from relive.load.inputs import SourceLike, common_length, inputs
from relive.load.sampler import Cursor, Sampler
from relive.load.streams import Stream, open_stream
from relive.load.transform import Transform
from relive.model.sharding import check_shared, shard

__all__ = ["DataLoader"]

_MAX_AHEAD: Final = 4096
"""Most batches prepared ahead, and most threads; the core has the same bound."""
_MAX_PROCESSES: Final = 256


class DataLoader:
    """Batches of one or more sources, gathered ahead on native threads.

    Endless by default: iterate `loader.epoch()` for one epoch at a time, or bound the stream
    with `epochs=`. Batches are dicts of arrays that are the consumer's own: memory serves
    again only when nobody holds an array over it. The stream is determined by the arguments
    and the position alone, never by the number of workers.

    Args:
        sources: One source, whose fields a batch has; or two, named `data` and `label`; or
            one dict of them. Arrays and paths of `.npy` files are taken as sources. A source
            with several fields gives a dict inside the batch when it has a name of its own.
        batch_size: Samples per batch and rank.
        mode: `"shuffle"`, `"random"`, `"sequential"` or `"block"`; see `Sampler`.
        seed: Chooses the order, and the `rng` of transforms.
        sampler: A `Sampler`, or any iterable of index arrays, instead of batch_size, mode,
            seed, window, stride, tail, rank and world_size. For an iterable, `seed` still
            seeds transforms.
        epochs: The stream ends after so many; iterating again starts it again.
        tail: `"wrap"`, `"drop"`, `"pad"` or `"keep"`: what happens when an epoch does not
            fill its last step; see `Sampler`. Under `"pad"` a batch has a `mask`.
        window: Rows per sample; see `Sampler`.
        stride: Rows between the starts of windows; see `Sampler`.
        rank: This process's share of the stream; None is `RANK` from the environment, or 0.
        world_size: How many share it; None is `WORLD_SIZE` from the environment, or 1.
        workers: Threads that gather, and transform. With 0 the consumer's thread gathers.
        prefetch: Batches prepared ahead; of small ones at least as many as workers make at once.
        transform: `transform(batch)` or `transform(batch, rng)`, applied by the workers.
        transform_workers: Processes that run the transform instead of threads.
    """

    def __init__(
        self,
        *sources: SourceLike | Mapping[str, SourceLike],
        batch_size: int = 256,
        mode: str = "shuffle",
        seed: int = 0,
        sampler: Sampler | Iterable[npt.ArrayLike] | None = None,
        epochs: int | None = None,
        tail: str = "wrap",
        window: int | None = None,
        stride: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        workers: int = 2,
        prefetch: int = 4,
        transform: Callable[..., Any] | None = None,
        transform_workers: int = 0,
    ) -> None:
        self._inputs = inputs(sources)
        self._length = common_length(self._inputs)
        self._custom: Iterable[npt.ArrayLike] | None = None
        if sampler is None:
            own, world = shard(rank, world_size)
            sampler = Sampler(
                self._length,
                batch_size,
                mode,
                seed=seed,
                window=window,
                stride=stride,
                rank=own,
                world_size=world,
                tail=tail,
            )
        elif rank is not None or world_size is not None:
            raise InvalidError(
                "rank and world_size are the sampler's, and were given beside it",
                hint="make the Sampler with rank= and world_size=",
            )
        elif isinstance(sampler, Sampler):
            check_shared(sampler.world_size)
        if isinstance(sampler, Sampler):
            self._sampler = _fitting(sampler, self._length)
        elif not isinstance(sampler, Iterable):
            raise InvalidTypeError(
                f"sampler must be a relive.Sampler or an iterable of index arrays, not {sampler!r}"
            )
        else:
            self._sampler = Sampler(self._length, 1, seed=seed)
            self._custom = sampler
        self._epochs = None if epochs is None else as_int("epochs", epochs)
        self._workers = as_int("workers", workers)
        self._prefetch = as_int("prefetch", prefetch)
        self._transform = None if transform is None else Transform(transform, self._sampler.seed)
        self._transform_workers = as_int("transform_workers", transform_workers)
        self._check()
        # Of a sampler of the user's own: the place to go on from, or None for where it stands.
        self._cursor: Any = self._sampler.cursor if self._custom is None else None
        self._stream: Stream | None = None
        self._locks: dict[int, threading.Lock] = {}
        self._stop: Callable[[], None] | None = None
        self._process = os.getpid()
        self._used = False
        self._ended = False

    # -- iteration ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Go on where the stream stands; a stream with an end starts again from the beginning.

        A stream with an end goes on, too, when its state was just loaded. A sampler of the
        user's own is iterated again, unless it is an iterator itself, which can only go on.
        """
        if self._restarts and self._used:
            self._rewind()
        return self

    def __next__(self) -> Any:
        """Give the next batch."""
        if self._ended:
            raise StopIteration
        stream = self._stream
        if stream is None:
            with self._changing:
                stream = self._stream or self._start()
        elif self._process != os.getpid():
            raise ClosedError(
                "this loader was running when the process forked, and its threads are the parent's",
                hint="make a loader in the process that uses it",
            )
        self._used = True
        try:
            batch = stream.next()
        except StopIteration as error:
            self._pause()
            raise RuntimeError("a transform or source raised StopIteration") from error
        except BaseException:
            self._pause()
            raise
        if batch is None:
            self._pause()
            self._ended = True
            raise StopIteration
        return batch

    def epoch(self) -> Iterator[Any]:
        """Give the rest of the current epoch, and stop where the next one begins.

        Under `tail="wrap"` a batch belongs to the epoch that its step begins in.
        """
        samples = self._known().samples_per_epoch
        if self._epochs is not None and self.position >= self._epochs * samples:
            self._rewind()
        end = (self.position // samples + 1) * samples
        while self.position < end:
            try:
                batch = next(self)
            except StopIteration:
                return
            yield batch

    def __len__(self) -> int:
        """Count the batches from beginning to end; only for a stream with an end."""
        if isinstance(self._custom, Sized):
            return len(self._custom)
        if self._custom is not None:
            raise InvalidTypeError(
                "the sampler has no length, and so the loader has none",
                hint="give the sampler a __len__ that counts its batches",
            )
        steps = self._sampler.native(self._epochs).total_steps
        if steps is None:
            raise InvalidTypeError(
                "this loader is endless and has no length",
                hint="use steps_per_epoch, or give it epochs=",
            )
        return steps

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch; under `tail="wrap"` those that begin in the first one."""
        return self._known().steps_per_epoch

    # -- where the stream stands -------------------------------------------------------------

    @property
    def position(self) -> int:
        """Samples of the global order that all ranks together were given."""
        self._known()
        return int(self._now()[0])

    @property
    def epoch_number(self) -> int:
        """The epoch that the next batch belongs to, from 0."""
        return self.position // self._sampler.samples_per_epoch

    def seek(self, step: int) -> None:
        """Stand where `step` batches from the beginning lead."""
        core = self._known().native(self._epochs)
        core.seek(as_int("step", step))
        self._move(core.cursor)

    def state_dict(self) -> dict[str, Any]:
        """Give where the stream stands: after the last batch given out, prefetched ones not."""
        if self._custom is None:
            return self._sampler.state_at(self._now())
        state, position = self._now()
        if state is None or not hasattr(self._custom, "load_state_dict"):
            raise InvalidError(
                "the sampler has no state",
                hint="give it state_dict() and load_state_dict(), or use relive.Sampler",
            )
        return {"sampler": copy.deepcopy(state), "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; batch size, world size and workers may be others than then."""
        if self._custom is None:
            self._move(self._sampler.cursor_of(state))
            return
        if not hasattr(self._custom, "load_state_dict") or not {"sampler", "position"} <= {*state}:
            raise InvalidError("the sampler cannot be set to this state")
        place = Place(copy.deepcopy(state["sampler"]), as_int("position", state["position"]))
        self._pause()
        self._move(resume(self._custom, place))

    # -- life --------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop all threads and processes. Batches stay valid; iterating starts them again."""
        self._pause()

    def __enter__(self) -> Self:
        """Use the loader in a `with` block, which closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the loader."""
        self.close()

    def __repr__(self) -> str:
        """Give the sources and the plan on one line."""
        names = [group or name for entry in self._inputs for group, name in entry.names.values()]
        order = f"batches of {self._sampler.batch_size}"
        if self._custom is not None:
            order = f"batches of a {type(self._custom).__name__}"
        return (
            f"{type(self).__name__}({self._length} rows: {', '.join(dict.fromkeys(names))}; "
            f"{order}, {self._workers} workers)"
        )

    def __reduce__(self) -> NoReturn:
        """Refuse: threads and their queues cannot be copied."""
        raise InvalidTypeError(
            "a loader cannot be pickled or copied",
            hint="pickle its state_dict() and make it again",
        )

    # -- making the stream -------------------------------------------------------------------

    def _allocator(self) -> Callable[[int], npt.NDArray[np.uint8]] | None:
        """Give memory for batches; None is the core's own. Adapters have theirs."""
        return None

    def _finish(self, stream: Stream) -> Stream:
        """Put the last stage on a stream; adapters convert batches here."""
        return stream

    @property
    def _restarts(self) -> bool:
        if self._custom is not None:
            return not isinstance(self._custom, Iterator)
        return self._epochs is not None

    def _known(self) -> Sampler:
        """Give the sampler, whose epochs and positions the loader knows."""
        if self._custom is not None:
            raise InvalidError(
                "a sampler of your own has no epochs and positions that the loader knows of",
                hint="iterate the loader itself",
            )
        return self._sampler

    @property
    def _changing(self) -> threading.Lock:
        """Held while the stream changes, for close() may come from any thread.

        One per process: a thread that held it when the process forked never lets go of it.
        """
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def _now(self) -> Any:
        if self._stream is not None:
            return self._stream.cursor
        return Place.of(self._custom) if self._cursor is None else self._cursor

    def _start(self) -> Stream:
        core = self._sampler.native(self._epochs)
        if self._custom is None:
            core.cursor = self._cursor
        elif self._cursor is None:
            self._cursor = self._now()
        else:
            self._cursor = resume(self._custom, self._cursor)
        stream = open_stream(
            self._inputs,
            core if self._custom is None else self._custom,
            cursor=self._cursor,
            masked=self._sampler.tail == "pad",
            workers=self._workers,
            prefetch=self._prefetch,
            transform=self._transform,
            transform_workers=self._transform_workers,
            allocate=self._allocator(),
        )
        stream = self._finish(stream)
        self._stream = stream
        self._process = os.getpid()
        # Threads must end with the loader even when nobody closes it.
        self._stop = weakref.finalize(self, _close_in, os.getpid(), stream)
        return stream

    def _pause(self) -> None:
        if self._stream is not None and self._process != os.getpid():
            return
        with self._changing:
            stream, stop = self._stream, self._stop
            if stream is None or stop is None or self._process != os.getpid():
                return
            self._cursor = stream.cursor
            self._stream = None
        stop()

    def _move(self, cursor: Cursor | Place | None) -> None:
        self._pause()
        self._cursor = cursor
        self._used = self._ended = False

    def _rewind(self) -> None:
        self._move(None if self._custom is not None else self._sampler.native(self._epochs).cursor)

    def _check(self) -> None:
        if self._custom is not None and self._epochs is not None:
            raise InvalidError("epochs= needs relive.Sampler: your sampler ends when it ends")
        self._sampler.native(self._epochs)  # checks the epochs
        if not 1 <= self._prefetch <= _MAX_AHEAD:
            raise InvalidError(f"prefetch must be from 1 to {_MAX_AHEAD}, not {self._prefetch}")
        if self._workers > _MAX_AHEAD:
            raise InvalidError(f"workers must be at most {_MAX_AHEAD}, not {self._workers}")
        if self._transform_workers > _MAX_PROCESSES:
            raise InvalidError(
                f"transform_workers must be at most {_MAX_PROCESSES}, not {self._transform_workers}"
            )
        if self._transform_workers and self._transform is None:
            raise InvalidError("transform_workers= without a transform has nothing to run")
        names = {group or name for entry in self._inputs for group, name in entry.names.values()}
        if self._sampler.tail == "pad" and "mask" in names:
            raise InvalidError(
                'tail="pad" gives batches a `mask`, and a source has that name',
                hint="pass the source under a name: DataLoader({'obs': source})",
            )


def _fitting(sampler: Sampler, length: int) -> Sampler:
    if sampler.length != length:
        raise InvalidError(f"the sampler is for {sampler.length} rows, the source has {length}")
    return sampler


def _close_in(process: int, stream: Stream) -> None:
    # In a forked child the threads are the parent's, and not ours to stop.
    if process == os.getpid():
        stream.close()
