"""When a device last recovered by itself, which a limit on how often looks back at; the boot a lease was granted in."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds columns with defaults, so that code of the first schema goes on writing rows without them."""
    op.add_column("devices", sa.Column("recoveries", sa.Text, nullable=False, server_default=sa.text("'[]'")))
    op.add_column("leases", sa.Column("boot_id", sa.Text, nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    """Takes the columns away; what they held is counted afresh, or not known."""
    op.drop_column("leases", "boot_id")
    op.drop_column("devices", "recoveries")
