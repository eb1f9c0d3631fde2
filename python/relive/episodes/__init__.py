"""Episodes: signals on one time axis, recorded, read, edited, copied and validated."""

from relive.episodes.copy import Copied, copy, merge
from relive.episodes.edit.edited_episode import EditedEpisode
from relive.episodes.edit.edits import Edits
from relive.episodes.edit.log import Edit
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.read.simple_signal import SimpleSignal
from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.recover import Recovered, RecoveredEpisode, recover
from relive.episodes.set_aside import SetAside
from relive.episodes.validate import validate
from relive.episodes.write.dataset_writer import LocalDatasetWriter
from relive.episodes.write.episode_writer import DiskEpisodeWriter
from relive.episodes.write.simple_writer import SimpleSignalWriter
from relive.episodes.write.statistics import RecorderStats, SignalStats
from relive.episodes.write.video_writer import VideoSignalWriter
from relive.model.clock import now_ns
from relive.model.dataset import ConcatDataset, Dataset, EpisodeList
from relive.model.episode import Episode, EpisodeView
from relive.model.report import Damaged, Problem, Report, Unfinished
from relive.model.resample import nearest, slerp
from relive.model.signal import ArraySignal, Signal
from relive.store.video import VideoSpec

__all__ = [
    "ArraySignal",
    "ConcatDataset",
    "Copied",
    "Damaged",
    "Dataset",
    "DiskEpisode",
    "DiskEpisodeWriter",
    "Edit",
    "EditedEpisode",
    "Edits",
    "Episode",
    "EpisodeList",
    "EpisodeView",
    "LocalDataset",
    "LocalDatasetWriter",
    "Problem",
    "RecorderStats",
    "Recovered",
    "RecoveredEpisode",
    "Report",
    "SetAside",
    "Signal",
    "SignalStats",
    "SimpleSignal",
    "SimpleSignalWriter",
    "Unfinished",
    "VideoSignal",
    "VideoSignalWriter",
    "VideoSpec",
    "copy",
    "merge",
    "nearest",
    "now_ns",
    "recover",
    "slerp",
    "validate",
]
