"""Changes of the ledger's schema, one file each. Imported only where a ledger's schema is not this version's.

A change comes in two steps (expand, then contract in a later release), so that old code runs on the new schema for as
long as the two may meet.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config


def upgrade(connection: sa.Connection) -> None:
    """Brings the schema to the newest revision inside the connection's transaction, which the caller commits."""
    command.upgrade(_config(connection), "head")


def downgrade(connection: sa.Connection, revision: str) -> None:
    """Takes the schema back to an earlier revision, likewise. What only later ones hold is gone then."""
    command.downgrade(_config(connection), revision)


def _config(connection: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
