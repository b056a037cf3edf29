"""The script that Alembic runs for a migration, on the connection and in the transaction that it was given."""

from alembic import context

if hasattr(context, "config"):  # which only Alembic sets; importing this does nothing
    context.configure(connection=context.config.attributes["connection"])
    with context.begin_transaction():
        context.run_migrations()
