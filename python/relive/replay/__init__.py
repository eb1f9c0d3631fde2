"""Reinforcement learning: runs recorded step by step, and the frames of a running one."""

from relive.replay.config import ReplayConfig
from relive.replay.episodes import ReplayEpisode, ReplayEpisodes, ReplaySignal
from relive.replay.live import LiveLane, LiveLaneInfo
from relive.replay.manage.compact import CompactedRun, compact
from relive.replay.manage.recover import RecoveredRun, RecoveredRuns, recover
from relive.replay.manage.runs import DeletedRun, RunSummary, archive, delete, list_runs, prune
from relive.replay.manage.validate import validate
from relive.replay.reader import ReplayReader
from relive.replay.recorder import ReplayRecorder, ReplayStats, StepRefs
from relive.replay.resolve import FrameRef, FrameResolver
from relive.replay.run import ReplayRoot, ReplayRun, RunSession
from relive.replay.scalars import StepRecord, TelemetryStore
from relive.replay.telemetry import ReplayWriter, TelemetrySink
from relive.replay.transitions.transitions import Transitions

__all__ = [
    "CompactedRun",
    "DeletedRun",
    "FrameRef",
    "FrameResolver",
    "LiveLane",
    "LiveLaneInfo",
    "RecoveredRun",
    "RecoveredRuns",
    "ReplayConfig",
    "ReplayEpisode",
    "ReplayEpisodes",
    "ReplayReader",
    "ReplayRecorder",
    "ReplayRoot",
    "ReplayRun",
    "ReplaySignal",
    "ReplayStats",
    "ReplayWriter",
    "RunSession",
    "RunSummary",
    "StepRecord",
    "StepRefs",
    "TelemetrySink",
    "TelemetryStore",
    "Transitions",
    "archive",
    "compact",
    "delete",
    "list_runs",
    "prune",
    "recover",
    "validate",
]
