"""The durable log of events and the current rows that derive from it."""
