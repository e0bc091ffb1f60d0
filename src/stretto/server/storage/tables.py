"""What the database holds.

`events` is append-only and is the truth; `jobs.document` is what `state.fold` made of a job's events, written in the
same transaction, so that a list of jobs does not have to replay them. `jobs.known` is what was last read from the
job's journal, and how far it was read.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer, MetaData, String, Table, Text

metadata = MetaData()

Id = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only for INTEGER keys."""

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("tenant", String(48), nullable=False),
    Column("name", String(48), nullable=False),
    Column("state", String(16), nullable=False),
    Column("version", Integer, nullable=False),
    Column("submitted_at", Float(53), nullable=False),
    Column("ended_at", Float(53)),
    Column("document", JSON, nullable=False),
    Column("known", JSON, nullable=False),
    Index("jobs_by_state", "state"),
    Index("jobs_by_tenant", "tenant", "submitted_at"),
)

events = Table(
    "events",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("job", String(16)),
    Column("tenant", String(48)),
    Column("t", Float(53), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("text", Text, nullable=False),
    Column("data", JSON, nullable=False),
    Index("events_by_job", "job", "id"),
    Index("events_by_tenant", "tenant", "id"),
    sqlite_autoincrement=True,
)

points = Table(
    "points",
    metadata,
    Column("job", String(16), primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("t", Float(53), nullable=False),
    Column("workers", Integer, nullable=False),
    Column("values", JSON, nullable=False),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("t", Float(53), nullable=False),
    Column("trigger", String(64), nullable=False),
    Column("policy", String(48), nullable=False),
    Column("seconds", Float(53), nullable=False),
    Column("kept", Integer, nullable=False),
    Column("alarm", Text),
    Column("changes", JSON, nullable=False),
    sqlite_autoincrement=True,
)

bars = Table(
    "bars",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("job", String(16), nullable=False),
    Column("tenant", String(48), nullable=False),
    Column("name", String(48), nullable=False),
    Column("node", String(64), nullable=False),
    Column("slots", Integer, nullable=False),
    Column("start", Float(53), nullable=False),
    Column("end", Float(53)),
    Index("bars_by_end", "end"),
    Index("bars_by_job", "job"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(48), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("tenant", String(48), nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("expires_at", Float(53)),
    Column("revoked_at", Float(53)),
    Column("used_at", Float(53)),
)

keys = Table(
    "keys",
    metadata,
    Column("tenant", String(48), primary_key=True),
    Column("key", String(128), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("job", String(16), nullable=False),
    Column("t", Float(53), nullable=False),
)

settings = Table(
    "settings",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", JSON, nullable=False),
)
