"""Wire version 1, frozen: what an agent or a controller of that version reads and writes."""
