"""`relive replay export`: runs in other formats."""

from typing import Final

from relive.cli.command import Group
from relive.cli.replay.export import h5, mp4, parquet

GROUP: Final = Group(
    "export", "write a run as a video, a Parquet file or an HDF5 file", (mp4, parquet, h5)
)
