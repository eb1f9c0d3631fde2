"""Building and publishing versions: tables are cut into shards, hashed and uploaded."""
