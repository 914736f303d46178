"""Alembic's environment: migrates on the connection that `convrec.feedback.database` hands over."""

from alembic import context

from convrec.feedback.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
