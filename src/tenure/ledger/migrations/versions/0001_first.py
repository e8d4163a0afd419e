"""The first schema: events, head, and the current rows of agents, tokens, devices, jobs and leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Spelt out and not taken from ``tables``: that moves on, and this must stay what it was.
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Makes every table and index, and the one row of ``head``."""
    head = op.create_table(
        "head",
        sa.Column("id", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("version", _NUMBER, nullable=False),
        sa.Column("sequence", _NUMBER, nullable=False),
        sa.Column("last_arrival", sa.Double, nullable=False),
        sa.Column("token_floor", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_head"),
        sa.CheckConstraint("id = 1", name=op.f("ck_head_one_row")),
    )
    op.bulk_insert(head, [{"id": 1, "version": 0, "sequence": 0, "last_arrival": 0.0, "token_floor": 0}])
    op.create_table(
        "events",
        sa.Column("seq", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("job", _NAME),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
    )
    _partial_index("ix_events_job", "events", ["job"], "job IS NOT NULL")
    op.create_table(
        "agents",
        sa.Column("id", _NAME, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("boot_id", sa.Text, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("contact", sa.Boolean, nullable=False),
        sa.Column("seen_at", sa.Double, nullable=False),
        sa.Column("version", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_agents"),
    )
    op.create_table(
        "tokens",
        sa.Column("uuid", _NAME, nullable=False),
        sa.Column("token", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("uuid", name="pk_tokens"),
    )
    op.create_table(
        "devices",
        sa.Column("name", _NAME, nullable=False),
        sa.Column("uuid", _NAME, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("agent", _NAME, nullable=False),
        sa.Column("simulated", sa.Boolean, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("token", _NUMBER, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("contact", sa.Boolean, nullable=False),
        sa.Column("lost_at", sa.Double),
        sa.Column("lease", _NAME),
        sa.Column("lease_ending", sa.Boolean, nullable=False),
        sa.Column("condition", sa.Text, nullable=False),
        sa.Column("quarantine", sa.Text),
        sa.Column("draining", sa.Text),
        sa.Column("contended", sa.Text),
        sa.Column("version", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_devices"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", _NAME, nullable=False),
        sa.Column("owner", _NAME, nullable=False),
        sa.Column("key", _NAME),
        sa.Column("body_hash", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Double, nullable=False),
        sa.Column("order_at", sa.Double, nullable=False),
        sa.Column("order_seq", _NUMBER, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("version", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_submitted", "jobs", ["submitted_at", "order_seq"])
    op.create_index("ix_jobs_owner", "jobs", ["owner", "submitted_at", "order_seq"])
    _partial_index("ux_jobs_key", "jobs", ["owner", "key"], "key IS NOT NULL", unique=True)
    _partial_index("ix_jobs_open", "jobs", ["id"], "state <> 'ended'")
    op.create_table(
        "leases",
        sa.Column("id", _NAME, nullable=False),
        sa.Column("device", _NAME, nullable=False),
        sa.Column("uuid", _NAME, nullable=False),
        sa.Column("agent", _NAME, nullable=False),
        sa.Column("job", _NAME, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("token", _NUMBER, nullable=False),
        sa.Column("granted_at", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("released_at", sa.Double),
        sa.Column("proof", sa.Text, nullable=False),
        sa.Column("version", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_leases"),
        sa.ForeignKeyConstraint(["uuid"], ["tokens.uuid"], name="fk_leases_uuid"),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_leases_job"),
    )
    op.create_index("ix_leases_job", "leases", ["job", "attempt"])
    _partial_index("ux_leases_live", "leases", ["uuid"], "state <> 'released'", unique=True)


def _partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
