"""What to do about a store that does not let us in: gRPC's and etcd's words, and the option that helps. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto.agent.hosts.store_options import TOKEN, StoreOptions


@dataclass(frozen=True, slots=True)
class Remedy:
    """`certain` where asking again cannot help."""

    text: str
    certain: bool = True


def remedy(message: str, shared: StoreOptions) -> Remedy | None:
    """What helps against an error of the store; None if that is not known."""
    return next((make(shared) for words, make in KNOWN if any(word in message for word in words)), None)


def _password(shared: StoreOptions) -> Remedy:
    return Remedy(
        f"etcd does not accept user {shared.user!r} with this password: check both; the password is read from "
        f"--store-token FILE or {TOKEN}, or from --store etcd://{shared.user}:PASSWORD@…"
    )


def _user(shared: StoreOptions) -> Remedy:
    return Remedy(
        f"etcd asks for a user: write --store {shared.scheme}://USER@…, with the password in a file for --store-token or in {TOKEN}"
    )


def _no_users(shared: StoreOptions) -> Remedy:
    return Remedy(
        f"etcd has no users switched on, but --store names {shared.user!r}: leave the user out, or switch them on with "
        "`etcdctl auth enable`"
    )


def _role(shared: StoreOptions) -> Remedy:
    return Remedy(
        f"user {shared.user!r} may not read and write {shared.prefix!r} in etcd: grant it with `etcdctl role "
        f"grant-permission ROLE readwrite --prefix {shared.prefix}`, or name another prefix in --store"
    )


def _ca(shared: StoreOptions) -> Remedy:
    named = (
        f"--store-ca {shared.ca} did not sign the store's certificate, or it is not for this address"
        if shared.ca
        else "the store's certificate is not signed by anybody that this system trusts"
    )
    return Remedy(f"{named}: give the CA that did with --store-ca, and check the names in the certificate")


def _client(shared: StoreOptions) -> Remedy:
    if shared.certificate is None:
        return Remedy("the store asks for a client certificate: give one with --store-cert and --store-key")
    return Remedy(f"the store does not accept the client certificate --store-cert {shared.certificate}: use one that its CA signed")


def _plain(shared: StoreOptions) -> Remedy:
    return Remedy("if it does not speak TLS, write etcd:// and leave out --store-ca, --store-cert and --store-key", certain=False)


def _closed(shared: StoreOptions) -> Remedy:
    return Remedy("if it speaks TLS, write etcds:// or give its CA with --store-ca", certain=False)


KNOWN: tuple[tuple[tuple[str, ...], Callable[[StoreOptions], Remedy]], ...] = (
    (("invalid user ID or password",), _password),
    (("user name is empty",), _user),
    (("authentication is not enabled",), _no_users),
    (("permission denied",), _role),
    (("CERTIFICATE_VERIFY_FAILED", "Hostname Verification"), _ca),
    (("TSI_DATA_CORRUPTED", "CERTIFICATE_REQUIRED", "BAD_CERTIFICATE"), _client),
    (("WRONG_VERSION_NUMBER", "Handshake read failed"), _plain),
    (("Socket closed",), _closed),
)
"""In this order: a later one may be part of an earlier one's words."""
