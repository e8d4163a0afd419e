"""The durable log of events and the current rows that derive from it.

``Ledger`` is the port (``Ledger.open(path)``), ``Writer`` the one way to change the fleet: commands in, one transaction
for all that gathered, answers after it.
"""

from tenure.ledger.rows import Stored
from tenure.ledger.store import Ledger, LedgerError
from tenure.ledger.writer import Committed, Result, Writer

__all__ = ["Committed", "Ledger", "LedgerError", "Result", "Stored", "Writer"]
