"""What only etcd has: endpoints that fail, restarts, users, client certificates, prefixes."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stretto.core.errors import UsageError
from stretto.membership.stores.etcd import EtcdOptions, EtcdStore
from stretto.membership.stores.store import Put, StoreError
from tests.stores.store_servers import ANSWER_S, Etcd, EtcdProcess, certificates, eventually, free_port

pytestmark = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: apt-get install etcd-server")


def test_an_endpoint_that_is_down_is_passed_over(etcd: EtcdProcess) -> None:
    async def story() -> None:
        store = EtcdStore(replace(Etcd((f"127.0.0.1:{free_port()}", etcd.endpoint)).options, answer_s=3.0))
        assert await eventually(store, "k") == []
        assert await store.commit([Put("k", "1")]) is not None
        await store.close()

    asyncio.run(story())


def test_unreachable_endpoints_are_named(etcd: EtcdProcess) -> None:
    async def story() -> None:
        port = free_port()
        store = EtcdStore(EtcdOptions((f"127.0.0.1:{port}",), answer_s=1.0))
        with pytest.raises(StoreError, match=f"127.0.0.1:{port}"):
            await store.read("")
        await store.close()

    asyncio.run(story())


def test_after_a_restart_data_leases_and_watches_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        process = EtcdProcess(tmp_path)
        process.start()
        try:
            store = EtcdStore(replace(Etcd((process.endpoint,)).options, answer_s=3.0))
            await eventually(store, "")
            lease = await store.grant(60.0)
            first = await store.commit([Put("k", "1", lease)])
            assert first is not None
            watching = asyncio.create_task(anext(aiter(store.watch("k", after=first))))
            await asyncio.sleep(0.3)
            process.stop()
            with pytest.raises(StoreError):
                await watching
            process.start()
            assert await eventually(store, "k") == ["k"]
            assert await store.renew(lease)
            await store.commit([Put("k", "2")])
            change = await anext(aiter(store.watch("k", after=first)))
            assert change.value == "2"
            await store.close()
        finally:
            process.stop()

    asyncio.run(story())


def test_jobs_with_different_prefixes_do_not_see_each_other(etcd: EtcdProcess) -> None:
    async def story() -> None:
        one, other = EtcdStore(Etcd((etcd.endpoint,)).options), EtcdStore(Etcd((etcd.endpoint,)).options)
        await one.commit([Put("k", "1")])
        await other.commit([Put("k", "2")])
        assert [entry.value for entry in (await one.read(""))[0]] == ["1"]
        await one.commit([Put("k", None)])
        assert (await one.read(""))[0] == []
        assert [entry.value for entry in (await other.read(""))[0]] == ["2"]
        await one.close()
        await other.close()

    asyncio.run(story())


def test_a_user_and_a_password_are_needed_where_etcd_asks_for_them(tmp_path: Path) -> None:
    async def story() -> None:
        process = EtcdProcess(tmp_path)
        process.start()
        try:
            plain = Etcd((process.endpoint,)).options
            admin = EtcdStore(plain)
            rpc: Any = admin._rpc
            await eventually(admin, "")
            await admin._request(rpc.AuthStub, "UserAdd", rpc.AuthUserAddRequest(name="root", password="secret"))
            await admin._request(rpc.AuthStub, "UserGrantRole", rpc.AuthUserGrantRoleRequest(user="root", role="root"))
            await admin._request(rpc.AuthStub, "AuthEnable", rpc.AuthEnableRequest())
            with pytest.raises(StoreError, match="user name is empty"):
                await admin.commit([Put("k", "1")])
            known = EtcdStore(replace(plain, user="root", password="secret"))
            assert await known.commit([Put("k", "1")]) is not None
            lease = await known.grant(30.0)
            assert await known.renew(lease)
            assert (await anext(aiter(known.watch("k", after=1)))).value == "1"
            wrong = EtcdStore(replace(plain, user="root", password="guess"))
            with pytest.raises(StoreError, match="authentication failed"):
                await wrong.read("")
            for store in (admin, known, wrong):
                await store.close()
        finally:
            process.stop()

    asyncio.run(story())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_client_certificates_open_an_etcd_that_asks_for_them(tmp_path: Path) -> None:
    files = certificates(tmp_path)

    async def story() -> None:
        process = EtcdProcess(tmp_path, tls=files)
        process.start()
        try:
            options = replace(Etcd((process.endpoint,)).options, ca=files["ca"])
            trusted = EtcdStore(replace(options, certificate=files["certificate"], key=files["key"]))
            await eventually(trusted, "")
            assert await trusted.commit([Put("k", "1")]) is not None
            stranger = EtcdStore(replace(options, answer_s=3.0))
            with pytest.raises(StoreError):
                await stranger.read("")
            await trusted.close()
            await stranger.close()
        finally:
            process.stop()

    asyncio.run(story())


def test_a_url_says_everything_and_wrong_ones_say_what_is_wrong() -> None:
    options = EtcdOptions.read("etcd://me:p%40ss@h1:2379,h2,[::1]:99/lab", job="digits", answer_s=ANSWER_S)
    assert options.endpoints == ("h1:2379", "h2:2379", "[::1]:99")
    assert (options.user, options.password, options.prefix) == ("me", "p@ss", "lab/digits/")
    assert "p@ss" not in repr(options)
    with pytest.raises(UsageError, match="etcd://HOST:PORT"):
        EtcdOptions.read("etcd://", job="digits")
    with pytest.raises(UsageError, match="belong together"):
        EtcdOptions.read("etcd://h1", job="digits", key=Path("k"))
    with pytest.raises(UsageError, match="cannot read the CA certificate"):
        asyncio.run(EtcdStore(EtcdOptions(("h:1",), ca=Path("/nowhere"))).read(""))


FORKING = """
import asyncio, os, sys
from stretto.membership.stores.etcd import EtcdOptions, EtcdStore
from stretto.membership.stores.store import Put
async def main():
    store = EtcdStore(EtcdOptions((sys.argv[1],), prefix="fork/", answer_s=20))
    await store.commit([Put("k", "1")])
    child = os.fork()
    if not child:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert await store.commit([Put("k", "2")])
    await store.close()
asyncio.run(main())
assert "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
"""


def test_an_agent_that_uses_etcd_can_still_fork(etcd: EtcdProcess) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_ENABLE_FORK_SUPPORT"}
    result = subprocess.run(
        [sys.executable, "-c", FORKING, etcd.endpoint], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
