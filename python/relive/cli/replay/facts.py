"""What is known about a run without reading its steps or arrays."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relive.cli.output import size_text
from relive.view.scale import clock_text, cut, duration_text

if TYPE_CHECKING:
    from relive.replay import ReplayRun
    from relive.replay.columns import ColumnSpec

_LONGEST: Final = 100


def run_facts(run: "ReplayRun") -> dict[str, Any]:
    """Return the facts about a run as JSON values; `fields` has its arrays."""
    source = run.source
    returns = [row.total_reward for row in source.episodes if row.ended_ns is not None]
    stored = source.stored_bytes
    return run.info | {
        "dropped": source.run.dropped,
        "mean_return": sum(returns) / len(returns) if returns else None,
        "sessions": [asdict(session) for session in run.sessions],
        "fields": {name: _field_facts(spec, stored[name]) for name, spec in source.columns.items()},
    }


def run_pairs(facts: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the facts about a run for people, without its arrays."""
    pairs: list[tuple[str, object]] = [
        ("run", facts["run_id"]),
        ("uid", facts["uid"]),
        ("status", facts["status"]),
        ("env", facts["env_id"]),
        ("seed", facts["seed"]),
        ("created", clock_text(facts["created_ns"])),
    ]
    if facts["ended_ns"] is not None:
        pairs.append(("duration", duration_text(facts["ended_ns"] - facts["created_ns"])))
    dropped = f", {facts['dropped']} dropped" if facts["dropped"] else ""
    pairs += [
        ("episodes", facts["episodes"]),
        ("steps", f"{facts['steps']}{dropped}"),
        ("mean return", facts["mean_return"]),
    ]
    git = facts["git"]
    if isinstance(git, dict):
        dirty = ", with changes" if git.get("dirty") else ""
        pairs.append(("git", f"{git.get('commit')} ({git.get('branch') or 'no branch'}{dirty})"))
    for name in ("spaces", "env_spec", "config", "metadata"):
        if facts[name] is not None:
            text = _spaces_text(facts[name]) if name == "spaces" else None
            pairs.append((name, cut(text or json.dumps(facts[name]), _LONGEST)))
    return pairs


def field_text(field: Mapping[str, Any]) -> str:
    """Return the dtype, shape, codec and size of an array on one line."""
    shape = f" {tuple(field['shape'])}" if field["shape"] else ""
    stack = f", stack along the {field['stack']} axis" if field["stack"] else ""
    size = size_text(field["stored_bytes"])
    return f"{field['dtype']}{shape}{stack}, {codec_text(field)}, {size}"


def codec_text(field: Mapping[str, Any]) -> str:
    """Return the codec of an array and its level, as in `zstd:1`."""
    return f"{field['codec']}" if field["level"] is None else f"{field['codec']}:{field['level']}"


def _field_facts(spec: "ColumnSpec", stored_bytes: int) -> dict[str, Any]:
    return {
        "dtype": str(np.dtype(spec.dtype)),
        "shape": list(spec.shape),
        "rows_of": spec.rows_of,
        "codec": spec.codec,
        "level": spec.level,
        "shuffle": spec.shuffle,
        "chunk_rows": spec.chunk_rows,
        "stack": spec.stack,
        "stored_bytes": stored_bytes,
    }


def _spaces_text(spaces: Any) -> str | None:
    """Return the spaces that a wrapper described on one line; None for other JSON."""
    if not isinstance(spaces, dict):
        return None
    texts = {name: _space_text(space) for name, space in spaces.items()}
    if any(text is None for text in texts.values()):
        return None
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def _space_text(space: Any) -> str | None:
    if not isinstance(space, dict) or not isinstance(space.get("type"), str):
        return None
    inner = space.get("spaces")
    if isinstance(inner, dict):
        text = ", ".join(f"{name}: {_space_text(each) or '?'}" for name, each in inner.items())
    elif isinstance(inner, list):
        text = ", ".join(_space_text(each) or "?" for each in inner)
    elif isinstance(space.get("shape"), list):
        text = f"{space.get('dtype', '')} {tuple(space['shape'])}".strip()
    else:
        text = str(space.get("n", space.get("nvec", "")))
    return f"{space['type']}({text})"
