"""Writes runs in other formats: MP4, Parquet, and HDF5 that needs no filter plugin."""

from relive.replay.export.hdf5 import export_h5
from relive.replay.export.parquet import export_parquet
from relive.replay.export.pictures import Hud, Picture, choose_episodes, read_pictures
from relive.replay.export.video import export_mp4

__all__ = [
    "Hud",
    "Picture",
    "choose_episodes",
    "export_h5",
    "export_mp4",
    "export_parquet",
    "read_pictures",
]
