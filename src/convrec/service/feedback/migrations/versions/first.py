"""The first tables: answers, shown, events, deletions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables and their indexes."""
    time = sa.DateTime(timezone=True)
    op.create_table(
        "answers",
        sa.Column("answer_id", sa.String, primary_key=True),
        sa.Column("time", time, nullable=False, index=True),
        sa.Column("user_id", sa.String, index=True),
        sa.Column("experiment", sa.String),
        sa.Column("arm", sa.String),
        sa.Column("is_explored", sa.Boolean, nullable=False),
        sa.Column("latency_seconds", sa.Float, nullable=False),
        sa.Column("messages", sa.Text),
        sa.Column("num_items", sa.Integer, nullable=False),
    )
    op.create_table(
        "shown",
        sa.Column("answer_id", sa.String, primary_key=True),
        sa.Column("list", sa.String, primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("item_id", sa.String, nullable=False),
        sa.Column("version", sa.String, nullable=False),
        sa.Column("propensity", sa.Float, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("event_id", sa.String, primary_key=True),
        sa.Column("answer_id", sa.String, nullable=False, index=True),
        sa.Column("list", sa.String, nullable=False),
        sa.Column("item_id", sa.String, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("event", sa.String, nullable=False),
        sa.Column("time", time, nullable=False),
    )
    op.create_table(
        "deletions",
        sa.Column("user", sa.String, primary_key=True),
        sa.Column("time", time, nullable=False),
    )
