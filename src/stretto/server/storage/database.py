"""Opening a database: the engine, the migrations, and the lock that lets only one server work on it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.interfaces import DBAPIConnection

from stretto.core.errors import UsageError

LOCK = 0x7374726574746F  # "stretto": the advisory lock of PostgreSQL


def connect(url: str) -> Engine:
    """An engine for a SQLite or PostgreSQL URL. Nothing is opened yet."""
    try:
        parsed = sa.make_url(url)
    except exc.ArgumentError as error:
        raise UsageError(f"--database {url!r} is not a URL: use sqlite:///file.db or postgresql://user@host/name") from error
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        return _sqlite(parsed)
    if kind in ("postgresql", "postgres"):
        return _postgresql(parsed.set(drivername="postgresql+psycopg"))
    raise UsageError(f"--database {kind}://… is not supported: use sqlite:///file.db or postgresql://user@host/name")


def _sqlite(url: sa.URL) -> Engine:
    engine = sa.create_engine(url, pool_size=8, max_overflow=8, connect_args={"timeout": 5.0, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def set_pragmas(connection: DBAPIConnection, _: object) -> None:
        # NORMAL in WAL mode survives a kill of the process; a power cut may lose the last transactions, never corrupt.
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "cache_size=-16000"):
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA {pragma}")
            cursor.close()

    return engine


def _postgresql(url: sa.URL) -> Engine:
    try:
        return sa.create_engine(url, pool_size=8, max_overflow=8, pool_pre_ping=True, connect_args={"connect_timeout": 5})
    except ModuleNotFoundError as error:
        raise UsageError("PostgreSQL needs psycopg: pip install 'stretto[postgresql]'") from error


def migrate(engine: Engine, revision: str = "head") -> None:
    """Brings the tables to this revision. Runs at every start; costs one query when there is nothing to do."""
    try:
        with engine.begin() as connection:
            command.upgrade(_alembic(connection), revision)
    except (exc.OperationalError, exc.DatabaseError) as error:
        embedded = engine.dialect.name == "sqlite"
        fix = "choose another --home or --database" if embedded else "is it running, and is --database right?"
        raise UsageError(f"the database {shown(engine)} cannot be used: {first_line(error)}: {fix}") from error


def _alembic(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def shown(engine: Engine) -> str:
    """The database's address as its user wrote it, without the password."""
    return engine.url.set(drivername=engine.dialect.name).render_as_string(hide_password=True)


def first_line(error: BaseException) -> str:
    origin = getattr(error, "orig", None) or error
    lines = str(origin).strip().splitlines()
    return lines[0] if lines else type(origin).__name__


class Lock:
    """Held while a server works on a database. Two servers would each start the jobs; the second one is refused."""

    def __init__(self, engine: Engine, *, home: Path) -> None:
        self._connection: Connection | None = None
        self._file: int | None = None
        if engine.dialect.name == "postgresql":
            self._connection = engine.connect()
            free = self._connection.execute(sa.text("select pg_try_advisory_lock(:key)"), {"key": LOCK}).scalar()
            self._connection.commit()
        else:
            name = engine.url.database
            path = Path(f"{name}.lock") if name and name != ":memory:" else home / "server.lock"
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            free = _try_lock(self._file)
        if not free:
            self.release()
            raise UsageError(f"another server works on {shown(engine)}: stop it, or give this one its own --home")

    def alive(self) -> bool:
        """False once a PostgreSQL session was lost: somebody else may hold the lock now."""
        if self._connection is None:
            return self._file is not None
        try:
            self._connection.execute(sa.text("select 1"))
            self._connection.commit()
            return True
        except exc.DBAPIError:
            return False

    def release(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
