"""Files on HTTP servers and in object stores, read by byte ranges."""
