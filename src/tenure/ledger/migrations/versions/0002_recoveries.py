"""When a device last recovered by itself: a limit on how often that may happen looks back an hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the column with a default, so that code of the first schema goes on writing rows without it."""
    op.add_column("devices", sa.Column("recoveries", sa.Text, nullable=False, server_default=sa.text("'[]'")))


def downgrade() -> None:
    """Takes the column away; what it held is counted afresh."""
    op.drop_column("devices", "recoveries")
