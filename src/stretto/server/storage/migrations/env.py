"""Alembic's entry: the connection is handed in by `database.migrate`, so there is no alembic.ini to get out of step."""

from alembic import context

from stretto.server.storage.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, compare_type=False)
with context.begin_transaction():
    context.run_migrations()
