"""Records Gymnasium environments, single ones and vectors, those of other packages too."""

from relive.replay.gym.frames import Frames
from relive.replay.gym.recording import Autoreset
from relive.replay.gym.spaces import describe_space
from relive.replay.gym.wrappers import Record

__all__ = ["Autoreset", "Frames", "Record", "describe_space"]
