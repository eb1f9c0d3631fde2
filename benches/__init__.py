"""Benchmarks of relive against the tools people use today.

`python -m benches --help` is the one runner; `benches.method` says how things
are timed, and every peer is one small file in `benches.peers`.
"""
