"""One file an instrument: a reader that does I/O under a deadline, and a pure parser fed with captures."""
