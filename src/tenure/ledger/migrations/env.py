"""Run by Alembic: applies the revisions on the connection it was given, inside its transaction."""

from alembic import context

from tenure.ledger.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
