"""Runs the command `relive` as `python -m relive`."""

import sys

from relive.cli import main

sys.exit(main())
