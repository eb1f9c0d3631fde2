"""Videos of camera frames: encoding, one MP4 fragment per frame, an index, random access."""

from relive.store.video.encode import Encoder, Packet
from relive.store.video.frames import FrameReader
from relive.store.video.index import FrameIndex, write_index
from relive.store.video.movie import FrameTable, Movie
from relive.store.video.profiles import PROFILES, Encoding, VideoSpec

__all__ = [
    "PROFILES",
    "Encoder",
    "Encoding",
    "FrameIndex",
    "FrameReader",
    "FrameTable",
    "Movie",
    "Packet",
    "VideoSpec",
    "write_index",
]
