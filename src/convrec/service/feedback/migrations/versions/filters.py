"""An answer's filters: the items that the user denied, and those that alone were allowed."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns, which are null for earlier answers."""
    op.add_column("answers", sa.Column("denied", sa.Text))
    op.add_column("answers", sa.Column("allowed", sa.Text))
