"""The agent: its own pure core, and the shell that carries out what the core decides."""
