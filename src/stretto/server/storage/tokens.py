"""Bearer tokens: made here, shown once, kept as a hash.

A token is `st_ID_SECRET`. The secret has 256 random bits, so one SHA-256 is enough: there is no dictionary to try.
Looking up the id is not secret; the hash is compared in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
import time

import sqlalchemy as sa

from stretto.server.models import NewToken, Scope, Token, TokenRequest
from stretto.server.storage import tables
from stretto.server.storage.repository import Storage

MOST_TOKENS = 10_000


def make_id(prefix: str) -> str:
    return f"{prefix}-{base64.b32encode(secrets.token_bytes(8)).decode().lower()[:12]}"


class TokenStore:
    """All tokens, held in memory and written through: a check costs no query."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, object]] = {}
        self._touched: dict[str, float] = {}
        with storage.engine.connect() as connection:
            for row in connection.execute(sa.select(tables.tokens)).mappings():
                self._rows[str(row["id"])] = dict(row)

    def create(self, request: TokenRequest, *, now: float) -> NewToken:
        if len(self._rows) >= MOST_TOKENS:
            self._forget_dead(now=now)
        if len(self._rows) >= MOST_TOKENS:
            raise ValueError(f"there are {len(self._rows)} tokens, at most {MOST_TOKENS} are kept: revoke some first")
        secret = secrets.token_urlsafe(32).replace("_", "-")
        row: dict[str, object] = {
            "id": make_id("t"),
            "name": request.name,
            "hash": _hash(secret),
            "scope": str(request.scope),
            "tenant": request.tenant,
            "created_at": now,
            "expires_at": None if request.expires_s is None else now + request.expires_s,
            "revoked_at": None,
            "used_at": None,
        }
        self._storage.transact(lambda connection: connection.execute(sa.insert(tables.tokens).values(**row)))
        with self._lock:
            self._rows[str(row["id"])] = row
        return NewToken.model_validate({**_shown(row), "secret": f"st_{row['id']}_{secret}"})

    def _forget_dead(self, *, now: float) -> None:
        """Keeps revoked and expired tokens for the list, while there is room."""
        dead = [name for name, row in list(self._rows.items()) if row["revoked_at"] is not None or _expired(row, now)]
        gone = [{"the_id": name} for name in dead]
        if gone:
            delete = sa.delete(tables.tokens).where(tables.tokens.c.id == sa.bindparam("the_id"))
            self._storage.transact(lambda connection: connection.execute(delete, gone))
        with self._lock:
            for name in dead:
                self._rows.pop(name, None)
                self._touched.pop(name, None)

    def check(self, secret: str, *, now: float) -> Token | None:
        """The token that this secret belongs to, if it is valid now."""
        parts = secret.split("_", 2)
        row = self._rows.get(parts[1]) if len(parts) == 3 and parts[0] == "st" else None
        known = str(row["hash"]) if row else "0" * 64
        equal = hmac.compare_digest(known.encode(), _hash(parts[2] if len(parts) == 3 else "").encode())
        if row is None or not equal or row["revoked_at"] is not None or _expired(row, now):
            return None
        row["used_at"] = now
        return Token.model_validate(_shown(row))

    def revoke(self, token: str, *, now: float) -> bool:
        row = self._rows.get(token)
        if row is None:
            return False
        if row["revoked_at"] is None:
            update = sa.update(tables.tokens).where(tables.tokens.c.id == token).values(revoked_at=now)
            self._storage.transact(lambda connection: connection.execute(update))
            row["revoked_at"] = now
        return True

    def items(self) -> list[Token]:
        return [Token.model_validate(_shown(row)) for row in list(self._rows.values())]

    def flush(self) -> None:
        """Writes when tokens were last used, at most a few times an hour."""
        used = {
            token: float(at)
            for token, row in list(self._rows.items())
            if isinstance(at := row["used_at"], int | float) and at != self._touched.get(token)
        }
        if used:
            rows = [{"the_id": token, "used": at} for token, at in used.items()]
            update = sa.update(tables.tokens).where(tables.tokens.c.id == sa.bindparam("the_id"))
            self._storage.transact(lambda connection: connection.execute(update.values(used_at=sa.bindparam("used")), rows))
            self._touched.update(used)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _expired(row: dict[str, object], now: float) -> bool:
    expires = row["expires_at"]
    return isinstance(expires, int | float) and expires <= now


def _shown(row: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in row.items() if key != "hash"}


def first_token(store: TokenStore) -> NewToken:
    """The administrator's token that `stretto serve` prints at its first start."""
    return store.create(TokenRequest(name="first", scope=Scope.ADMIN), now=time.time())
