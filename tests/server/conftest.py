"""Databases and servers for tests: SQLite always, PostgreSQL from Debian's packages where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).parent))

from server_harness import Running, running


def _bin() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL cluster of our own, on a Unix socket. Skips where it is not installed."""
    folder = _bin()
    if folder is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    base = Path(tempfile.mkdtemp(prefix="stretto-pg-"))
    as_user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    if as_user:
        shutil.chown(base, "postgres")
    data = base / "data"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "check": True, "cwd": "/"}
    subprocess.run([*as_user, str(folder / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "--no-sync"], **quiet)
    options = f"-k {base} -c listen_addresses= -c fsync=off -c max_connections=50"
    subprocess.run(
        [*as_user, str(folder / "pg_ctl"), "-D", str(data), "-w", "-t", "120", "-l", str(base / "log"), "-o", options, "start"],
        **quiet,
    )
    try:
        yield f"postgresql://postgres@/postgres?host={base}"
    finally:
        subprocess.run([*as_user, str(folder / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop"], **{**quiet, "check": False})
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'server.db'}"
        return
    url = request.getfixturevalue("postgres")
    name = f"test_{os.getpid()}_{abs(hash(str(tmp_path))) % 10**9}"
    admin = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sa.text(f"create database {name}"))
    yield url.replace("/postgres?", f"/{name}?")
    with admin.connect() as connection:
        connection.execute(sa.text(f"drop database {name} with (force)"))
    admin.dispose()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with 8 slots and simulated agents, for the tests of one file."""
    with running(tmp_path_factory.mktemp("home"), slots=8) as found:
        yield found
