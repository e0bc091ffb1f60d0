"""Decisions and the history of slots, in the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from stretto.server.storage import tables
from stretto.server.storage.repository import Storage

KEPT_DECISIONS = 20_000
KEPT_BARS_S = 30 * 86400.0
MOST_BARS = 20_000
"""Bars that one query returns."""

Holdings = Mapping[tuple[str, str], tuple[str, str, int]]
"""(job, node) → (tenant, name, slots)."""


class DecisionLog:
    """Decisions, and intervals in which jobs held slots."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open: dict[tuple[str, str], tuple[int, int]] = {}
        with storage.engine.connect() as connection:
            for row in connection.execute(sa.select(tables.bars).where(tables.bars.c.end.is_(None))):
                self._open[row.job, row.node] = (row.id, row.slots)

    def decide(self, row: Mapping[str, Any], *, holdings: Holdings) -> int:
        """Writes a decision and the changed intervals."""
        return int(self._storage.transact(lambda connection: self._decide(connection, row, holdings)))

    def _decide(self, connection: Connection, row: Mapping[str, Any], holdings: Holdings) -> int:
        key = connection.execute(sa.insert(tables.decisions).values(**row)).inserted_primary_key
        assert key is not None
        if int(key[0]) % 1000 == 0:
            connection.execute(sa.delete(tables.decisions).where(tables.decisions.c.id < int(key[0]) - KEPT_DECISIONS))
            old = tables.bars.c.end < row["t"] - KEPT_BARS_S
            connection.execute(sa.delete(tables.bars).where(old))
        self._draw(connection, holdings, t=row["t"])
        return int(key[0])

    def draw(self, holdings: Holdings, *, t: float) -> None:
        """Writes the changed intervals alone, when a job left between two decisions."""
        if {key: slots for key, (_, _, slots) in holdings.items()} != {key: bar[1] for key, bar in self._open.items()}:
            self._storage.transact(lambda connection: self._draw(connection, holdings, t=t))

    def _draw(self, connection: Connection, holdings: Holdings, *, t: float) -> None:
        after = dict(self._open)
        for key, (number, slots) in self._open.items():
            if key not in holdings or holdings[key][2] != slots:
                connection.execute(sa.update(tables.bars).where(tables.bars.c.id == number).values(end=t))
                del after[key]
        for (job, node), (tenant, name, slots) in holdings.items():
            if (job, node) not in after:
                row = {"job": job, "tenant": tenant, "name": name, "node": node, "slots": slots, "start": t}
                made = connection.execute(sa.insert(tables.bars).values(**row)).inserted_primary_key
                assert made is not None
                after[job, node] = (int(made[0]), slots)
        self._open = after

    def decisions(self, *, before: int | None, limit: int) -> list[dict[str, Any]]:
        column = tables.decisions.c
        query = sa.select(tables.decisions).order_by(column.id.desc()).limit(limit)
        if before is not None:
            query = query.where(column.id < before)
        with self._storage.engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def bars(self, *, since: float, until: float) -> list[dict[str, Any]]:
        column = tables.bars.c
        query = sa.select(tables.bars).where(column.start <= until, sa.or_(column.end.is_(None), column.end >= since))
        with self._storage.engine.connect() as connection:
            return [dict(row) for row in connection.execute(query.order_by(column.start).limit(MOST_BARS)).mappings()]
