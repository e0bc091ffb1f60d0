"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bars",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=48), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("start", sa.Float(precision=53), nullable=False),
        sa.Column("end", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("bars_by_end", "bars", ["end"], unique=False)
    op.create_index("bars_by_job", "bars", ["job"], unique=False)
    op.create_table(
        "decisions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("t", sa.Float(precision=53), nullable=False),
        sa.Column("trigger", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.String(length=48), nullable=False),
        sa.Column("seconds", sa.Float(precision=53), nullable=False),
        sa.Column("kept", sa.Integer(), nullable=False),
        sa.Column("alarm", sa.Text(), nullable=True),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=16), nullable=True),
        sa.Column("tenant", sa.String(length=48), nullable=True),
        sa.Column("t", sa.Float(precision=53), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("events_by_job", "events", ["job", "id"], unique=False)
    op.create_index("events_by_tenant", "events", ["tenant", "id"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=48), nullable=False),
        sa.Column("name", sa.String(length=48), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.Float(precision=53), nullable=False),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("known", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("jobs_by_state", "jobs", ["state"], unique=False)
    op.create_index("jobs_by_tenant", "jobs", ["tenant", "submitted_at"], unique=False)
    op.create_table(
        "keys",
        sa.Column("tenant", sa.String(length=48), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=16), nullable=False),
        sa.Column("t", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key"),
    )
    op.create_table(
        "points",
        sa.Column("job", sa.String(length=16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("t", sa.Float(precision=53), nullable=False),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job", "step"),
    )
    op.create_table(
        "settings",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=48), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=48), nullable=False),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("expires_at", sa.Float(precision=53), nullable=True),
        sa.Column("revoked_at", sa.Float(precision=53), nullable=True),
        sa.Column("used_at", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    for table in ("settings", "keys", "tokens", "bars", "decisions", "points", "events", "jobs"):
        op.drop_table(table)
