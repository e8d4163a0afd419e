"""Versioned messages shared by controller, agent and SDK."""
