"""The pictures of environments."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from relive.errors import InvalidError
from relive.replay.gym.refusals import Refusals
from relive.replay.gym.spaces import is_image, kept
from relive.replay.gym.streams import EpisodeStream

Frames: TypeAlias = Literal["auto", "render", "observation"] | None
_FRAMES: Final = ("auto", "render", "observation", None)


class FrameSource:
    """Takes the pictures of an environment: all of its sub-environments at once, and rarely.

    Args:
        kind: What a picture is.
        every: Only every so many calls of `step` have a frame.
        render: Returns a picture of each sub-environment.
        refusals: Warns if that fails, and there is no picture; None raises the error.
    """

    def __init__(
        self,
        kind: Literal["render", "observation"] | None,
        every: int,
        render: Callable[[], Sequence[Any]],
        refusals: Refusals | None = None,
    ) -> None:
        self.kind = kind
        self._every = every
        self._render = render
        self.refusals = refusals
        self._rendered: list[Any] | None = None

    def of(self, stream: EpisodeStream, place: int) -> Any:
        """Return the picture of a sub-environment as it is now, if a frame is due."""
        if self.kind is None or stream.calls % self._every:
            return None
        return self.rendered(place) if self.kind == "render" else stream.observation

    def after(self, stream: EpisodeStream, place: int, observation: Any, *, is_there: bool) -> Any:
        """Return the picture after the last step of an episode, if a frame is due.

        Args:
            stream: The stream of the episode.
            place: The number of its sub-environment.
            observation: The last observation.
            is_there: Whether the environment still has its last state.
        """
        if self.kind is None or stream.calls % self._every:
            return None
        if self.kind == "observation":
            return observation
        return self.rendered(place) if is_there else None

    def rendered(self, place: int) -> Any:
        """Return a copy of the rendered picture of a sub-environment."""
        try:
            return self._picture(place)
        except Exception as error:
            if self.refusals is None:
                raise
            self.refusals.warn(f"a frame: {error}", type(error))
            return None

    def _picture(self, place: int) -> Any:
        if self._rendered is None:
            frames = self._render()
            self._rendered = [None if frame is None else kept(None, frame) for frame in frames]
        try:
            return self._rendered[place]
        except IndexError:
            raise InvalidError(
                f"render() returned {len(self._rendered)} frames, but there is a sub-environment "
                f"{place}",
                hint='pass frames=None or frames="observation"',
            ) from None

    def forget(self) -> None:
        """Note that the environment changes, so that pictures have to be taken again."""
        self._rendered = None


def choose_frames(
    frames: object, render_mode: Any, spaces: Iterable[Any]
) -> Literal["render", "observation"] | None:
    """Return what pictures are made of, or raise an error if there cannot be any.

    Args:
        frames: The argument `frames`.
        render_mode: The render mode of the environment.
        spaces: The observation spaces.
    """
    if frames not in _FRAMES:
        listed = ", ".join(map(repr, _FRAMES))
        raise InvalidError(f"`frames` must be one of {listed}, got {frames!r}")
    if frames == "auto":
        return "render" if render_mode == "rgb_array" else None
    if frames == "render" and render_mode != "rgb_array":
        raise InvalidError(
            f'frames="render" needs the render mode "rgb_array", but it is {render_mode!r}',
            hint='make the environment with render_mode="rgb_array", or pass frames=None',
        )
    if frames == "observation":
        for space in spaces:
            if not is_image(space):
                raise InvalidError(
                    'frames="observation" needs observations that are images of uint8, with the '
                    f"shape (height, width) or (height, width, channels), but the space is {space}",
                    hint='pass frames="render" or frames=None',
                )
    return frames  # type: ignore[return-value]
