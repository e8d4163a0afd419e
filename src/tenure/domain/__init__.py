"""What is true and what is allowed: frozen records, events, transition tables, decisions. Standard library only."""
