"""The kinds of data that relive opens: how each is recognized, and where its reader is.

Readers are named, not imported, so that opening one kind does not import the others. So are the
functions that convert batches for frameworks.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of data that can be opened.

    `reader` is `"module:function"`; the function takes a path, and with `joins` also a list
    of paths, which it reads as one. Several paths of a kind that is `single` cannot be opened as
    one. A `remote` kind is read from a URI as well. A file is of
    this kind if it begins with `magic`, or else if its name ends in a `suffix`. A directory is
    of this kind if the beginning of the file `inside` of it contains `magic`, or else if it has
    a file or directory two levels below whose relative path matches the regular expression
    `below`. Text that matches the regular expression `reference` names data of this kind that is
    neither a file nor a directory.
    """

    name: str
    title: str
    reader: str
    magic: bytes
    suffix: str | tuple[str, ...]
    joins: bool = False
    single: bool = False
    remote: bool = False
    inside: str = ""
    below: str = ""
    reference: str = ""

    @property
    def is_file(self) -> bool:
        """Whether data of this kind is a file."""
        return not (self.is_folder or self.reference)

    @property
    def is_folder(self) -> bool:
        """Whether data of this kind is a directory."""
        return bool(self.inside or self.below)

    def load(self) -> Callable[..., Any]:
        """Import the reader."""
        return _imported(self.reader)


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind(
                "pack",
                "a pack (`.a2pack`)",
                "relive.store.pack:PackReader.open",
                b"A2PACK\0\0",
                ".a2pack",
                joins=True,
                remote=True,
            ),
            Kind(
                "array",
                "an array (`.npy`)",
                "relive.store.arrays:ArraySource",
                b"\x93NUMPY",
                ".npy",
            ),
            Kind(
                "signal",
                "a signal (`.parquet`, `.mp4`)",
                "relive.episodes.read.episode:open_signal",
                b"PAR1",
                (".parquet", ".mp4"),
            ),
            Kind(
                "records",
                "a record store (a directory)",
                "relive.store.records:RecordStore.open",
                b'"format": "relive-records"',
                "",
                inside="meta.json",
            ),
            Kind(
                "episode",
                "an episode (a directory)",
                "relive.episodes.read.episode:open_episodes",
                b'"schema_version"',
                "",
                joins=True,
                inside="meta.json",
            ),
            Kind(
                "dataset",
                "a dataset of episodes (a directory)",
                "relive.episodes.read.local_dataset:open_roots",
                b"",
                "",
                joins=True,
                below="[0-9]{12}/[0-9]{12}",
            ),
            Kind(
                "published",
                "a published dataset (`ws/name`)",
                "relive.publish.read.dataset:dataset",
                b"",
                "",
                single=True,
                remote=True,
                reference=r"(?:relive://.*|[a-z0-9_-]+/[a-z0-9_-]+(?:@[A-Za-z0-9._-]*)?)",
            ),
            Kind(
                "run",
                "the file of a run (`.h5`)",
                "relive.replay.run:ReplayRun",
                b"\x89HDF\r\n\x1a\n",
                ".h5",
                single=True,
            ),
            Kind(
                "runs",
                "runs of reinforcement learning (a directory)",
                "relive.replay.run:ReplayRoot",
                b"",
                "",
                single=True,
                below=r"telemetry/telemetry\.sqlite",
            ),
        )
    }
)
"""Every kind, by its name."""


ADAPTERS: Final[Mapping[str, str]] = MappingProxyType({"torch": "relive.load.torch:to_tensors"})
"""What converts the arrays of a batch for a framework: `"module:function"` by its name."""


def adapter(name: str) -> Callable[[Any], Any]:
    """Import the function that converts arrays for a framework."""
    return _imported(ADAPTERS[name])


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = attrgetter(function)(import_module(module))
    return found


def known_by(name: str, head: bytes = b"") -> Kind | None:
    """Return the kind of a file, by its first bytes or else by its name."""
    files = [kind for kind in KINDS.values() if kind.is_file]
    for kind in files:
        if head.startswith(kind.magic):
            return kind
    for kind in files:
        if name.endswith(kind.suffix):
            return kind
    return None


def known_inside(heads: Mapping[str, bytes], folders: Iterable[str] = ()) -> Kind | None:
    """Return the kind of a directory, by the first bytes of files in it or its sub-directories.

    `heads` maps names of files to their first bytes; `folders` are relative paths.
    """
    for kind in KINDS.values():
        if kind.inside and kind.magic in heads.get(kind.inside, b""):
            return kind
    patterns = [(kind, re.compile(kind.below)) for kind in KINDS.values() if kind.below]
    for folder in folders:
        for kind, pattern in patterns:
            if pattern.fullmatch(folder):
                return kind
    return None


def known_as(text: str) -> Kind | None:
    """Return the kind that a reference names: `ws/name`, `ws/name@version` or `relive://…`."""
    for kind in KINDS.values():
        if kind.reference and re.fullmatch(kind.reference, text, re.DOTALL):
            return kind
    return None


def open_kinds() -> str:
    """Return a sentence part that lists what can be opened."""
    *others, last = [kind.title for kind in KINDS.values()]
    return f"{', '.join(others)} and {last}"
