"""Batches for training: samplers, loaders, and sources made of other sources."""

from importlib import import_module
from types import ModuleType

from relive.load.compose import Concat, Map, Mix
from relive.load.loader import DataLoader
from relive.load.priority import PrioritizedSampler
from relive.load.sampler import Sampler
from relive.model.select import Subset
from relive.model.split import split

__all__ = ["Concat", "DataLoader", "Map", "Mix", "PrioritizedSampler", "Sampler", "Subset", "split"]


def __getattr__(name: str) -> ModuleType:
    """Import `relive.load.torch` and `relive.load.jax` when they are first used."""
    if name in {"jax", "torch"}:
        return import_module(f"relive.load.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
