"""Writes the frames of a run as an MP4 file."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from relive._arguments import as_int
from relive.errors import EncoderError, InvalidError
from relive.model.report import Progress
from relive.replay.export.hud import enlarged, with_text
from relive.replay.export.pictures import (
    Picture,
    Rgb,
    choose_episodes,
    count_pictures,
    read_pictures,
)
from relive.replay.export.target import check_target
from relive.replay.source import source_of
from relive.store.atomic import whole_file
from relive.store.video import Encoder, Movie, Packet, VideoSpec

_SECOND_NS: Final = 1_000_000_000


def export_mp4(
    root: str | os.PathLike[str],
    run_id: str | None,
    target: str | os.PathLike[str],
    *,
    episode: int | str | None = None,
    field: str | None = None,
    fps: float = 30.0,
    hud: bool = False,
    scale: int = 1,
    profile: str = "record",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write the frames of a run, or of one episode, as an MP4 file; return how many there are.

    The file appears when it is complete. Steps without a frame are left out.

    Args:
        root: The directory of the runs, or the `.h5` file of a run.
        run_id: The id of the run; None for a file.
        target: The `.mp4` file to write. The files of the runs themselves are an `InvalidError`.
        episode: The number or id of an episode, -1 is the last one; None is all of them, one after
            the other.
        field: The array to show; see `read_pictures`.
        fps: Frames per second.
        hud: Whether the episode, step, action, reward and return are written below each frame.
        scale: How many pixels of the video a pixel of a frame is wide and high.
        profile: The video profile: `record`, `compact`, `fast` or `lossless`.
        overwrite: Replace an existing file.
        progress: Called with the number of frames so far, and of all frames.
    """
    source = source_of(root, run_id)
    path = check_target(target, (".mp4",), [source])
    spec = VideoSpec(profile, fps=fps)
    factor = as_int("scale", scale, at_least=1, at_most=64)
    chosen = choose_episodes(source, episode)
    count = count_pictures(source, chosen, field)
    if not count:
        raise InvalidError(f"run {source.run.run_id!r} has no frames to export")
    shown = (
        _drawn(picture, hud=hud, factor=factor) for picture in read_pictures(source, chosen, field)
    )
    with whole_file(path, overwrite=overwrite) as file:
        part = Path(f"{file.name}.part")
        _write(part, shown, spec, progress, count)
        part.replace(file.name)
    return count


def _drawn(picture: Picture, *, hud: bool, factor: int) -> Rgb:
    drawn = enlarged(picture.rgb, factor)
    return with_text(drawn, picture.hud.lines()) if hud else drawn


def _write(
    path: Path, frames: Iterable[Rgb], spec: VideoSpec, progress: Progress | None, count: int
) -> None:
    encoding = spec.encoding()
    encoder: Encoder | None = None
    movie: Movie | None = None
    try:
        for number, frame in enumerate(frames):
            if encoder is None or movie is None:
                encoder = Encoder(encoding, frame.shape)
                movie = Movie(path, encoder.header)
            ts_ns = round(number * _SECOND_NS / encoding.fps)
            _add(movie, encoder.encode(frame, ts_ns))
            if progress is not None:
                progress(number, count)
        if encoder is not None and movie is not None:
            _add(movie, encoder.finish())
            movie.close()
    except BaseException as error:
        # After an encoder failed, closing it would end the process in x264.
        if encoder is not None and not isinstance(error, EncoderError):
            encoder.close()
        if movie is not None:
            movie.abort()
        raise


def _add(movie: Movie, packets: Sequence[Packet]) -> None:
    for packet in packets:
        movie.add(packet)
