"""The ledger's tables, once for every store.

Two kinds of table. ``events`` is the history and is only ever appended to. The others hold what is true now (and what
became of everything closed), are written in the same transaction as the events they follow from, and are all that a
start reads. ``head`` is one row that every transaction moves forward: whoever finds it elsewhere than they left it is
not the only writer.

Columns that a query filters or sorts by are columns; everything else of a record travels as JSON text. Text and not a
JSON type: PostgreSQL's refuses NUL characters, SQLite has none, and no query looks inside. Times are UTC seconds as
double precision, which both stores give back bit by bit.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    literal_column,
    text,
)

#: The schema this code writes. Alembic's own table holds it, so that Alembic need not be imported to compare.
REVISION = "0002"

METADATA = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# In SQLite only a column declared INTEGER is the row's own number; as BIGINT it would need a second index.
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
# Names compare byte by byte in every store, so that a search by prefix means the same.
_NAME = Text().with_variant(Text(collation="C"), "postgresql")

revision = Table("alembic_version", METADATA, Column("version_num", Text, primary_key=True))

head = Table(
    "head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", _NUMBER, nullable=False),
    Column("sequence", _NUMBER, nullable=False),
    Column("last_arrival", Double, nullable=False),
    Column("token_floor", _NUMBER, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)

#: The one row of ``head`` in a new ledger.
FIRST_HEAD = {"id": 1, "version": 0, "sequence": 0, "last_arrival": 0.0, "token_floor": 0}

events = Table(
    "events",
    METADATA,
    Column("seq", _NUMBER, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("job", _NAME),
    Column("body", Text, nullable=False),
)
_NAMED = text("job IS NOT NULL")
Index("ix_events_job", events.c.job, sqlite_where=_NAMED, postgresql_where=_NAMED)

agents = Table(
    "agents",
    METADATA,
    Column("id", _NAME, primary_key=True),
    Column("host", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("instance", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("contact", Boolean, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("version", _NUMBER, nullable=False),
)

tokens = Table(
    "tokens",
    METADATA,
    Column("uuid", _NAME, primary_key=True),
    Column("token", _NUMBER, nullable=False),
)

devices = Table(
    "devices",
    METADATA,
    Column("name", _NAME, primary_key=True),
    Column("uuid", _NAME, nullable=False),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("agent", _NAME, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Column("labels", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("token", _NUMBER, nullable=False),
    Column("state", Text, nullable=False),
    Column("since", Double, nullable=False),
    Column("contact", Boolean, nullable=False),
    Column("lost_at", Double),
    Column("lease", _NAME),
    Column("lease_ending", Boolean, nullable=False),
    Column("condition", Text, nullable=False),
    Column("quarantine", Text),
    Column("recoveries", Text, nullable=False, server_default=text("'[]'")),
    Column("draining", Text),
    Column("contended", Text),
    Column("version", _NUMBER, nullable=False),
)

jobs = Table(
    "jobs",
    METADATA,
    Column("id", _NAME, primary_key=True),
    Column("owner", _NAME, nullable=False),
    Column("key", _NAME),
    Column("body_hash", Text, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("order_at", Double, nullable=False),
    Column("order_seq", _NUMBER, nullable=False),
    Column("spec", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("version", _NUMBER, nullable=False),
)
Index("ix_jobs_submitted", jobs.c.submitted_at, jobs.c.order_seq)
Index("ix_jobs_owner", jobs.c.owner, jobs.c.submitted_at, jobs.c.order_seq)
# The same key of the same owner is one job, whatever the core believed (I11).
_KEYED = text("key IS NOT NULL")
Index("ux_jobs_key", jobs.c.owner, jobs.c.key, unique=True, sqlite_where=_KEYED, postgresql_where=_KEYED)
# What a start looks for: its cost follows the jobs that are open, not those that ever were.
_OPEN = text("state <> 'ended'")
Index("ix_jobs_open", jobs.c.id, sqlite_where=_OPEN, postgresql_where=_OPEN)

leases = Table(
    "leases",
    METADATA,
    Column("id", _NAME, primary_key=True),
    Column("device", _NAME, nullable=False),
    Column("uuid", _NAME, ForeignKey("tokens.uuid"), nullable=False),
    Column("agent", _NAME, nullable=False),
    Column("job", _NAME, ForeignKey("jobs.id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("token", _NUMBER, nullable=False),
    Column("granted_at", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("released_at", Double),
    Column("proof", Text, nullable=False),
    Column("boot_id", Text, nullable=False, server_default=text("''")),
    Column("version", _NUMBER, nullable=False),
)
Index("ix_leases_job", leases.c.job, leases.c.attempt)
# The second wall (I1): at most one live lease a device, whatever the core believed.
_LIVE = text("state <> 'released'")
Index("ux_leases_live", leases.c.uuid, unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE)

# The same two conditions for queries, spelt as the partial indexes are, so that a planner finds them.
LIVE = leases.c.state != literal_column("'released'")
UNFINISHED = jobs.c.state != literal_column("'ended'")
