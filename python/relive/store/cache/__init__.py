"""The cache: verified bytes of remote blobs on the local disk, shared by all processes.

Reading needs no lock: every file is written under another name and renamed, and what is read is
compared with its digest. Locks only keep the limit and avoid that two processes download the same.
"""

from relive.store.cache.disk import BlobCache, open_cache
from relive.store.cache.documents import CachedRoot

__all__ = ["BlobCache", "CachedRoot", "open_cache"]
