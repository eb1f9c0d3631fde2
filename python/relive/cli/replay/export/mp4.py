"""`relive replay export mp4`: the frames of a run as a video."""

import argparse
from typing import Final

from relive.cli.arguments import add_output, positive, print_written
from relive.cli.command import Exit
from relive.cli.progress import Progress
from relive.cli.replay.arguments import add_episode, add_pictures, add_run, find_run

SUMMARY: Final = "write the frames of a run, or of one episode, as a video"
EXAMPLE: Final = "relive replay export mp4 runs cartpole-1 --output best.mp4 --episode 12 --hud"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_run(parser)
    add_output(parser, "FILE", "the .mp4 file to write")
    add_episode(parser, "all, one after the other")
    add_pictures(parser)
    parser.add_argument(
        "--hud",
        action="store_true",
        help="write the episode, step, action, reward and return below each frame",
    )
    parser.add_argument(
        "--scale",
        metavar="N",
        type=positive,
        default=1,
        help="make each pixel N pixels wide and high (default: 1)",
    )
    parser.add_argument(
        "--video",
        metavar="PROFILE",
        default="record",
        help="how to encode: record (the default), compact, fast or lossless",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Encode the frames; steps without one are left out."""
    from relive.replay.export import export_mp4

    root, run_id = find_run(arguments)
    with Progress("encoding") as progress:
        count = export_mp4(
            root,
            run_id,
            arguments.output,
            episode=arguments.episode,
            field=arguments.field,
            fps=arguments.fps,
            hud=arguments.hud,
            scale=arguments.scale,
            profile=arguments.video,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    return print_written(arguments, count, "frame")
