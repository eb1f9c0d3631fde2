"""Names of the files of a cache.

```text
pages/2f/<digest>.<page>    leaves of one page, 1 MiB, of a blob
whole/2f/<digest>           objects that are verified as a whole: leaf tables, small blobs, footers
seen/<root>/<key>           manifests, pointers and lists as a root last returned them
pins/<name>                 digests of blobs that are not evicted
times-<slots>               when pages were last used, by a hash of their name
usage                       how many bytes are allocated; locked by who writes
claims/<name>               who downloads what, renewed every two seconds
tmp/<name>                  files that are being written
```

Everything is in `blobs` of the cache directory, and nothing else of that directory is deleted.
"""

import re
from pathlib import Path
from typing import Final

from relive.store.leaves import LEAF_BYTES

BASE: Final = "blobs"
PAGES: Final = "pages"
WHOLE: Final = "whole"
SEEN: Final = "seen"
PINS: Final = "pins"
CLAIMS: Final = "claims"
TEMPORARY: Final = "tmp"
TIMES: Final = "times"
USAGE: Final = "usage"

PAGE_LEAVES: Final = 16
PAGE_BYTES: Final = PAGE_LEAVES * LEAF_BYTES
"""The bytes of a blob that share a file."""

_FOLDERS: Final = 64
_PAGE_NAME: Final = re.compile(r"([0-9a-f]{64})\.(\d{1,12})")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def page_path(base: Path, digest: str, page: int) -> str:
    """Return the path of a page; the pages of a blob are spread over all folders."""
    folder = (int(digest[:2], 16) + page) % _FOLDERS
    return f"{base}/{PAGES}/{folder:02x}/{digest}.{page}"


def whole_path(base: Path, digest: str) -> str:
    """Return the path of an object that is kept as a whole."""
    return f"{base}/{WHOLE}/{int(digest[:2], 16) % _FOLDERS:02x}/{digest}"


def parse_page_name(name: str) -> tuple[str, int] | None:
    """Return the blob and the number of a page by its file name; None for other files."""
    found = _PAGE_NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


def is_digest(name: str) -> bool:
    """Check whether a file name is a digest."""
    return _DIGEST.fullmatch(name) is not None
