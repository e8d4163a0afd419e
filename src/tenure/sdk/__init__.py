"""The typed client: a standard-library core over the local socket."""
