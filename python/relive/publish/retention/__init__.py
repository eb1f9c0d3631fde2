"""Publishers and a gc on one root at the same time: leases, and what is about to be deleted.

The protocol, and why it loses nothing, is in docs/decisions/garbage-collection.md.
"""
