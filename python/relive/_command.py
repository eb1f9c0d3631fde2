"""Ctrl-C while the command `relive` starts ends the process with status 130, without a traceback.

The script of the command and `python -m relive` import this package before they call anything in
it, so the handler is set when this module is imported, which is before all others. An exception
would not do: an extension module that is interrupted while it is imported may report another one.
It imports only modules that Python has imported when it starts: not `typing`, which takes long.
"""

import os
import signal
import sys

_INTERRUPTED = 130
_SCRIPT_BYTES = 4096


def end_start() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` from here on."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(_signal: int, _frame: object) -> None:
    os._exit(_INTERRUPTED)


def _is_starting() -> bool:
    """Return whether this process is the command, and not a program that imports relive."""
    if sys.argv[:1] == ["-m"]:  # Python looks for the module that is to be run
        return ("-m", "relive") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    # Not `sys.argv[0]`, which a process of multiprocessing has from its parent.
    script = str(getattr(sys.modules.get("__main__"), "__file__", ""))
    if os.path.basename(script) != "relive":  # noqa: PTH119 - pathlib takes long to import
        return False
    try:
        with open(script, "rb") as file:  # noqa: PTH123 - as above
            return b"relive.cli" in file.read(_SCRIPT_BYTES)
    except OSError:
        return False


if signal.getsignal(signal.SIGINT) is signal.default_int_handler and _is_starting():
    signal.signal(signal.SIGINT, _exit)
