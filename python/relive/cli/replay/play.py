"""`relive replay play`: shows the frames of a run in the terminal, or writes them as a video."""

import argparse
import sys
from typing import Final

from relive.cli.arguments import add_overwrite, print_written
from relive.cli.command import Exit
from relive.cli.output import count_text, print_line
from relive.cli.progress import Progress
from relive.cli.replay.arguments import add_episode, add_pictures, add_run, find_id, find_run
from relive.errors import NotFoundError, UnknownNameError

SUMMARY: Final = "show the frames of a run in the terminal, or write them as a video, with a HUD"
EXAMPLE: Final = "relive replay play runs cartpole-1 --episode -1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_run(parser)
    add_episode(parser, "all, one after the other")
    add_pictures(parser)
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write an .mp4 file instead, with the HUD below each frame",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="show the newest frame of a run that is being recorded, until it ends",
    )
    add_overwrite(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Show or write the frames, with the episode, step, action, reward and return."""
    if arguments.live and (arguments.output or arguments.episode is not None or arguments.field):
        arguments.parser.error(
            "--live shows the newest frame: pass it without --episode, --field and --output"
        )
    if arguments.json and arguments.output is None:
        arguments.parser.error("--json needs --output")
    if arguments.overwrite and arguments.output is None:
        arguments.parser.error("--overwrite needs --output")
    if arguments.output is not None:
        return _write(arguments)
    return _show_live(arguments) if arguments.live else _show(arguments)


def _write(arguments: argparse.Namespace) -> Exit:
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
            hud=True,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    return print_written(arguments, count, "frame")


def _show(arguments: argparse.Namespace) -> Exit:
    from relive.replay.export import choose_episodes, read_pictures
    from relive.replay.play import play
    from relive.replay.source import source_of

    source = source_of(*find_run(arguments))
    chosen = choose_episodes(source, arguments.episode)
    shown = ((rgb, hud.line()) for rgb, hud in read_pictures(source, chosen, arguments.field))
    count = play(shown, arguments.fps, stream=sys.stdout, keys=sys.stdin)
    print_line(f"{source.run.run_id}: {count_text(count, 'frame')}")
    return Exit.OK


def _show_live(arguments: argparse.Namespace) -> Exit:
    from relive.replay.play import live_pictures, play

    try:
        run_id = find_id(arguments)
    except (NotFoundError, UnknownNameError):  # it is in the database after its first second
        if arguments.run_id is None:
            raise
        run_id = arguments.run_id
    count = play(live_pictures(run_id), arguments.fps, stream=sys.stdout, keys=sys.stdin)
    print_line(f"{run_id}: {count_text(count, 'frame')}")
    return Exit.OK
