"""Values as they are printed: in the cells of a table, or in JSON."""

from typing import Any, Final

import numpy as np

from relive.cli.output import shown

_FEW: Final = 8
"""Arrays with more items are told by their dtype and shape."""


def plain(value: Any) -> Any:
    """Give a value as JSON has it; bytes in hexadecimal digits."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def cell(value: Any) -> object:
    """Give a value as it is shown in a table."""
    if isinstance(value, np.ndarray) and value.size > _FEW:
        return f"{value.dtype}{list(value.shape)}"
    simple = plain(value)
    return simple if isinstance(simple, int | float) else shown(str(simple))
