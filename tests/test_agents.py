"""Every example of an agent that learns beats random actions by its margin, or fails."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT, torchrl_python

NEEDS = {"sb3_dqn": ("stable_baselines3",), "torchrl_dqn": ("torchrl",)}
SCRIPTS = {
    "dqn": "a mean return",
    "hindsight": "of the goals",
    "recurrent": "a mean return",
    "sac_vector": "a mean return",
    "sb3_dqn": "a mean return",
    "torchrl_dqn": "a mean return",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.needs("torch", "gymnasium", *NEEDS.get(name, ())))
        for name in SCRIPTS
    ],
)
def test_agent_learns(name: str) -> None:
    python = torchrl_python() if name == "torchrl_dqn" else sys.executable
    assert python is not None
    done = subprocess.run(
        [python, ROOT / "examples" / "agents" / f"{name}.py"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert SCRIPTS[name] in done.stdout
    assert not done.stderr, done.stderr


def test_all_agents_are_run() -> None:
    assert set(SCRIPTS) == {path.stem for path in (ROOT / "examples" / "agents").glob("*.py")}
