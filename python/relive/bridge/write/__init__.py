"""Writers of record stores and of other people's formats, one module per format."""
