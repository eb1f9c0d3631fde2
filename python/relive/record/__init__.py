"""Experience as it happens: signals, episodes and datasets of them, recorded and read by time."""

from relive.model.episode import Episode, EpisodeView
from relive.model.resample import nearest, slerp
from relive.model.signal import Signal
from relive.model.signal_view import ArraySignal
from relive.record.checking import Problem, Report, validate
from relive.record.clock import now_ns
from relive.record.copying import Copied, copy, merge
from relive.record.dataset import ConcatDataset, Dataset, EpisodeList
from relive.record.disk_episode import DiskEpisode
from relive.record.edit_log import Edit
from relive.record.edits import Edits
from relive.record.episode_writer import DiskEpisodeWriter
from relive.record.local import LocalDataset, Unfinished
from relive.record.local_writer import LocalDatasetWriter
from relive.record.overlay import EditedEpisode
from relive.record.recovering import Recovered, RecoveredEpisode, recover
from relive.record.simple import SimpleSignal
from relive.record.simple_writer import SimpleSignalWriter
from relive.record.statistics import RecorderStats, SignalStats
from relive.record.video import VideoSignal
from relive.record.video_writer import VideoSignalWriter
from relive.store.video import VideoSpec

__all__ = [
    "ArraySignal",
    "ConcatDataset",
    "Copied",
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
