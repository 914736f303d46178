"""Answers are not shown in random order any more."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Drop the columns of the random order."""
    op.drop_column("answers", "is_explored")
    op.drop_column("shown", "propensity")
