"""The files of one signal: its tape while it is recorded, its Parquet file afterwards."""
