"""`python -m relive` is the command `relive`."""

import sys

from relive.cli import main

sys.exit(main())
