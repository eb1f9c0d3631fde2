"""Arguments of the commands about published datasets: which dataset, which root, which table."""

import argparse
import re
from typing import TYPE_CHECKING, Any, Final

from relive.cli.arguments import parse_names
from relive.errors import InvalidError

if TYPE_CHECKING:
    from relive.publish import PublishedDataset, Table
    from relive.publish.version.catalog import Catalog
    from relive.publish.version.names import DatasetId, Reference

SHORT: Final = 12
"""How many digits of a digest are printed for people."""
_AGE: Final = re.compile(r"(\d{1,9})(s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add where datasets are published."""
    parser.add_argument(
        "--root",
        metavar="URI",
        help="where datasets are published: a directory, s3://bucket/prefix, gs://…, az://… or, "
        "for reading, https://… (default: RELIVE_ROOT, else a directory in the user's data folder)",
    )


def add_dataset(parser: argparse.ArgumentParser, *, version: bool = True) -> None:
    """Add the dataset, or a version of it, and the root."""
    parser.add_argument(
        "dataset",
        metavar="WS/NAME@VERSION" if version else "WS/NAME",
        help="a published dataset"
        + (", its latest version or @TAG, @DIGEST or 8 and more digits of one" if version else ""),
    )
    add_root(parser)


def add_lock(parser: argparse.ArgumentParser) -> None:
    """Add the consent to use a lock object."""
    parser.add_argument(
        "--lock",
        action="store_true",
        help="use a lock object on a store that ignores conditional puts; all publishers must",
    )


def add_table(parser: argparse.ArgumentParser, *, split: bool = False) -> None:
    """Add which table of a dataset to read, and with `split` which rows of it."""
    parser.add_argument(
        "--table",
        metavar="NAME",
        help="a table of a published dataset (default: `main`, or the only one)",
    )
    if split:
        parser.add_argument("--split", metavar="NAME", help="only the rows of this split")


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add which columns to read."""
    parser.add_argument(
        "--columns", metavar="LIST", type=parse_names, help="only these columns, as in image,label"
    )


def open_dataset(arguments: argparse.Namespace) -> "PublishedDataset":
    """Open the dataset that was named."""
    from relive.publish import dataset

    return dataset(arguments.dataset, root=arguments.root)


def open_catalog(arguments: argparse.Namespace) -> "Catalog":
    """Open the catalog of the root."""
    from relive.publish.version.catalog import Catalog
    from relive.store.roots import open_root

    return Catalog(open_root(arguments.root), lock=getattr(arguments, "lock", False))


def parse_id(text: str) -> "DatasetId":
    """Parse the name of a dataset; one with a version is an error."""
    from relive.publish.version import names

    return names.parse_id(text)


def parse_version(text: str) -> "Reference":
    """Parse the name of a dataset, with or without a version."""
    from relive.publish.version.names import parse_reference

    return parse_reference(text)


def parse_workspace(text: str | None) -> str | None:
    """Parse a workspace, as in `lab/` or `lab`."""
    from relive.publish.version.names import is_id_part

    if text is None:
        return None
    workspace = text.removesuffix("/")
    if not is_id_part(workspace):
        raise InvalidError(f"`{text}` is not the name of a workspace", hint="write it as in `lab/`")
    return workspace


def parse_age(text: str) -> float:
    """Parse a duration, as in `30d` or `12h`, and return its seconds."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"`{text}` is not a duration, as in 30d, 12h, 45m, 90s or 2w"
        )
    return float(int(found[1]) * _SECONDS[found[2]])


def find_table(dataset: "PublishedDataset", name: str | None, split: str | None = None) -> "Table":
    """Return a table of a dataset: the one named, else `main`, else the only one."""
    names = list(dataset.tables)
    if name is None and "main" not in names:
        if len(names) != 1:
            listed = ", ".join(f"`{each}`" for each in names) or "none"
            raise InvalidError(
                f"`{dataset.pinned}` has no table `main`; its tables: {listed}",
                hint="pass --table NAME" if names else None,
            )
        name = names[0]
    return dataset.table(name or "main", split=split)


def short(digest: str) -> str:
    """Return the beginning of a digest."""
    return digest[:SHORT]


def short_reference(dataset: Any, digest: str) -> str:
    """Return a version for people: `ws/name@4f0c…`, which can be passed to commands."""
    return f"{dataset}@{short(digest)}"


def short_pinned(pinned: str) -> str:
    """Return a version for people, given as `ws/name@digest`."""
    dataset, _, digest = pinned.partition("@")
    return short_reference(dataset, digest)
