"""Alembic's environment: migrates on the connection that `convrec.service.feedback.database` hands over."""

from alembic import context

from convrec.service.feedback.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
