"""Reads blobs through a cache until it is killed; says so when it finds a wrong byte.

Arguments: the directory of the cache, its limit, the number of blobs, and a seed. Every process has
the same blobs, in memory.
"""

import random
import sys
from pathlib import Path

from relive.store.blobs import Blobs
from relive.store.cache.manage import shrink
from tests.store.cache.blob_fixtures import MIB, CountingRoot, cache_in, publish, random_bytes


def main() -> None:
    """Read random ranges, sometimes as a new reader, sometimes shrink the cache."""
    directory, limit, count, seed = Path(sys.argv[1]), *map(int, sys.argv[2:])
    root = CountingRoot()
    contents = [random_bytes(MIB + 70_000 * number, number) for number in range(count)]
    refs = [publish(root, data) for data in contents]
    chance = random.Random(seed)  # noqa: S311 - an order
    print("ready", flush=True)  # noqa: T201 - for the test
    while True:
        blobs = Blobs(root, cache_in(directory, limit))
        assert blobs.cache is not None
        for _ in range(30):
            number = chance.randrange(count)
            one, other = (chance.randrange(refs[number].nbytes + 1) for _ in range(2))
            start, stop = min(one, other), max(one, other)
            found = bytes(blobs.read_many([(refs[number], start, stop)])[0])
            if found != contents[number][start:stop]:
                print("wrong", flush=True)  # noqa: T201 - for the test
                return
        blobs.cache.flush(5)
        if chance.random() < 0.1:
            shrink(blobs.cache.disk, limit // 2)


if __name__ == "__main__":
    main()
