"""The parts of a job on several hosts that need no network of their own: journals together, options, signed requests, joining."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stretto.agent.hosts import join
from stretto.agent.hosts.address import choose_address
from stretto.agent.hosts.join import AlreadyEnded, _enter, _name, card
from stretto.agent.hosts.signed_rpc import Listener, PeerUnreachable, ask, sign
from stretto.agent.hosts.ssh import SshLaunch, Target, explain, parse_hosts, remote
from stretto.agent.hosts.store_factory import PrefixStore, endpoints, remedy
from stretto.agent.hosts.store_options import StoreOptions
from stretto.agent.options import RunOptions
from stretto.cli.hosts import own_words, tls_words
from stretto.core.audit import audit, merge
from stretto.core.errors import UsageError
from stretto.core.journal import Commit, End, EpochEnd, LoaderLine, Record, Resume, Start
from stretto.membership import store_schema
from stretto.membership.stores.embedded import EmbeddedStore
from stretto.membership.stores.store import Put
from tests.stores.store_servers import certificates


def commit(step: int, *, first: int | None = None) -> Commit:
    return Commit(step, 0, 0, step * 4 if first is None else first, 4, 4, 1, 1, t=float(step))


LOADER = LoaderLine(0, 16, 4, 4, t=0.0)
DONE = EpochEnd(epoch=0, loader=0, t=9.0)


# ---- journals


def test_journals_of_hosts_that_came_and_went_are_whole_together_and_not_alone() -> None:
    first: list[Record] = [Start("train.py", t=0.0), LOADER, commit(0), commit(1), commit(2)]
    second: list[Record] = [Start("train.py", t=1.0), LOADER, commit(2), commit(3), DONE, End("finished", "d", 2, t=9.0)]
    records, wrong = merge({"h1": first, "h2": second})
    assert not wrong
    assert audit(records).holds
    assert not audit(second).holds, "a control: one journal alone has not everything"
    assert not audit(merge({"h1": first})[0] + [DONE]).holds


def test_a_step_that_two_hosts_tell_differently_is_found() -> None:
    _, wrong = merge({"h1": [commit(0), commit(1)], "h2": [commit(1, first=5)]})
    assert wrong == ["step 1 is told differently by h1 (0, 0, 4, 4, 4) and by h2 (0, 0, 5, 4, 4)"]


def test_a_later_life_replaces_what_a_lost_host_had_done_after_the_checkpoint() -> None:
    lost: list[Record] = [Start("t", t=0.0), LOADER, commit(0), commit(1), commit(2)]
    other: list[Record] = [Start("t", t=0.0), LOADER, commit(0), Resume(0, 2, t=5.0), commit(1), commit(2), commit(3), DONE]
    records, wrong = merge({"h1": lost, "h2": other})
    assert not wrong
    assert audit(records).holds
    assert [one.step for one in records if isinstance(one, Resume)] == [0]


def test_a_journal_that_lost_its_last_lines_is_found() -> None:
    _, wrong = merge({"h1": [LOADER, commit(0), End("finished", "d", 3, t=1.0)], "h2": [commit(0), commit(1), commit(2)]})
    assert "its end says 3" in wrong[0]


# ---- options


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("etcd://a,b:1", (("a", 2379), ("b", 1))),
        ("etcd://u:p@[fd77::1]:5/x", (("fd77::1", 5),)),
        ("tcp://h:7070", (("h", 7070),)),
        ("etcd://[fd77::1]", (("fd77::1", 2379),)),
    ],
)
def test_hosts_and_ports_of_a_store(url: str, found: tuple[tuple[str, int], ...]) -> None:
    assert endpoints(url) == found


@pytest.mark.parametrize("url", ["tcp://h", "tcp://h:x", "etcd://:1", "tcp://h:70000"])
def test_a_store_without_host_and_port_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="no HOST:PORT"):
        endpoints(url)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"store": "redis://x:1"}, "is no store"),
        ({"job": "a b"}, "cannot name a job"),
        ({"slots": -1}, "--slots -1"),
        ({"certificate": "c"}, "belong together"),
        ({"lease_s": 0.5}, "--lease 0.5"),
        ({"fence_s": 1.0}, "shorter than --lease"),
    ],
)
def test_wrong_options_of_a_job_are_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        replace(StoreOptions("etcd://h:1", "digits"), **options).validate()


def test_the_secret_comes_from_a_file_and_is_not_written_down(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    shared = StoreOptions("tcp://h:1", "digits", token_file=str(tmp_path / "token"))
    assert shared.token() == "0123456789abcdef"
    assert "0123456789abcdef" not in json.dumps(RunOptions("train.py", shared=shared).to_dict(), default=str)
    (tmp_path / "token").write_text("short")
    with pytest.raises(UsageError, match="at least 16"):
        shared.token()


def test_without_an_interface_the_way_to_the_store_decides() -> None:
    assert choose_address(None, endpoints=[("127.0.0.1", 1)]) == "127.0.0.1"
    assert choose_address("lo", endpoints=[]) == "127.0.0.1"
    with pytest.raises(UsageError, match="does not have this address"):
        choose_address("203.0.113.7", endpoints=[])
    with pytest.raises(UsageError, match="no interface"):
        choose_address("nonesuch", endpoints=[])


# ---- ssh


def test_hosts_are_read_with_their_slots() -> None:
    assert parse_hosts("a, b:4,user@c") == [Target("a"), Target("b", 4), Target("user@c")]
    for wrong in ("", "a,a", "a:x", "-oProxyCommand=x"):
        with pytest.raises(UsageError, match="--hosts"):
            parse_hosts(wrong)


def test_what_is_said_anew_for_every_host_is_left_out_of_the_command() -> None:
    typed = ["--hosts", "a,b", "--workers", "1:4", "--store=x", "-q", "--job", "j", "--checkpoint", "c"]
    assert own_words(typed) == ["--workers", "1:4", "--checkpoint", "c"]


def test_the_secret_is_not_in_the_remote_command_line() -> None:
    launch = SshLaunch("j", "tcp://a:1", "sesame" * 6, "/some folder", "/usr/bin/python3", {})
    assert "sesame" not in remote(launch, ["run", "it's here"])
    assert "ssh-copy-id a" in explain("a", 255, "root@a: Permission denied (publickey,password).", folder="/f")


# ---- signed requests


@pytest.mark.parametrize(
    ("store", "shown", "user", "password"),
    [
        ("etcd://h:1", "etcd://h:1", "", "secret"),
        ("etcd://me@h:1,g:2/lab", "etcd://me@h:1,g:2/lab", "me", "secret"),
        ("etcd://me:p%40ss@h:1", "etcd://me@h:1", "me", "p@ss"),
        ("etcds://me:p/w:x@[::1]:1", "etcds://me@[::1]:1", "me", "p/w:x"),
    ],
)
def test_a_password_is_read_where_it_is_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, store: str, shown: str, user: str, password: str
) -> None:
    monkeypatch.setenv("STRETTO_STORE_TOKEN", "secret")
    shared = StoreOptions(store, "digits")
    assert (shared.url, shared.user, shared.password()) == (shown, user, password)
    assert shared.to_dict()["store"] == shown
    assert StoreOptions.from_dict(shared.to_dict()).url == shown


def test_a_store_that_is_closed_for_now_is_asked_again_and_one_that_refuses_is_not() -> None:
    shared = StoreOptions("etcd://me@h:1", "digits")
    refused, closed = remedy("etcdserver: user name is empty", shared), remedy("UNAVAILABLE: Socket closed", shared)
    assert refused is not None and refused.certain
    assert closed is not None and not closed.certain and "etcds://" in closed.text
    assert remedy("UNAVAILABLE: Connection refused", shared) is None


def test_stopping_over_ssh_reaches_a_store_with_tls() -> None:
    shared = StoreOptions("etcds://h:1", "digits", ca="ca.pem", certificate="me.pem", key="me.key")
    assert tls_words(shared) == ["--store-ca", "ca.pem", "--store-cert", "me.pem", "--store-key", "me.key"]
    assert tls_words(StoreOptions("etcd://h:1", "digits")) == tls_words(None) == []


def test_only_requests_that_are_signed_with_the_jobs_token_are_answered() -> None:
    heard: list[Any] = []

    async def handle(request: dict[str, Any]) -> dict[str, Any]:
        heard.append(request)
        if request["verb"] == "no":
            raise UsageError("not here")
        return {"said": request["verb"]}

    async def story() -> None:
        listener = Listener(handle, token="right")
        address = await listener.start("127.0.0.1")
        assert (await ask(address, "hello", token="right"))["said"] == "hello"
        with pytest.raises(UsageError, match="not here"):
            await ask(address, "no", token="right")
        with pytest.raises(PeerUnreachable, match="not signed"):
            await ask(address, "hello", token="wrong")
        assert len(heard) == 2
        reader, writer = await asyncio.open_connection(*address)
        await reader.readline()
        body = json.dumps({"verb": "hello"})
        old = sign("right", role="ask", over="another challenge", body=body)
        writer.write(json.dumps({"body": body, "mac": old}).encode() + b"\n")
        assert b"refused" in await reader.readline(), "a request that was recorded elsewhere"
        writer.close()
        await listener.close()

    asyncio.run(story())
    assert len(heard) == 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed: apt-get install openssl")
@pytest.mark.slow
def test_with_certificates_agents_speak_tls_and_listen_to_nobody_without_one_of_the_same_ca(tmp_path: Path) -> None:
    def shared(folder: str) -> StoreOptions:
        (tmp_path / folder).mkdir()
        files = certificates(tmp_path / folder)
        return StoreOptions(
            "etcds://h:1", "digits", ca=str(files["ca"]), certificate=str(files["certificate"]), key=str(files["key"])
        )

    async def handle(request: dict[str, Any]) -> dict[str, Any]:
        return {"said": request["verb"]}

    async def story() -> None:
        own, stranger = shared("own"), shared("stranger")
        listener = Listener(handle, token="right")
        address = await listener.start("127.0.0.1", tls=own.server_tls())
        assert (await ask(address, "hello", token="right", tls=own.client_tls(agents=True)))["said"] == "hello"
        for tls in (None, stranger.client_tls(agents=True), replace(stranger, ca=own.ca).client_tls(agents=True)):
            with pytest.raises(PeerUnreachable):
                await ask(address, "hello", token="right", tls=tls)
        with pytest.raises(PeerUnreachable, match="not signed"):
            await ask(address, "hello", token="wrong", tls=own.client_tls(agents=True))
        await listener.close()
        assert own.sealed and not replace(own, ca=None).sealed and not StoreOptions("etcd://h:1", "digits").sealed
        assert replace(own, certificate=None, key=None).client_tls(agents=True) is None

    asyncio.run(story())


# ---- joining


def options(tmp_path: Path, text: str = "print()", **more: Any) -> RunOptions:
    script = tmp_path / "train.py"
    script.write_text(text)
    return RunOptions(str(script), most=4, **{"shared": StoreOptions("etcd://h:1", "digits", host="h1"), **more})


async def enter(store: Any, asked: RunOptions) -> tuple[dict[str, Any], int]:
    assert asked.shared is not None
    return await _enter(store, asked, asked.shared)


def test_the_second_host_takes_the_first_ones_card_and_a_different_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        store = PrefixStore(EmbeddedStore(), "digits/")
        first, life = await enter(store, options(tmp_path))
        await store.commit([Put(store_schema.AGENTS + "h1", "{}")])
        second, _ = await enter(store, options(tmp_path))
        assert (second["id"], second["token"], life) == (first["id"], first["token"], 1)
        with pytest.raises(UsageError, match=r"another script.*begun by host h1"):
            await enter(store, options(tmp_path, "print(1)"))
        with pytest.raises(UsageError, match="other arguments"):
            await enter(store, options(tmp_path, args=("-x",)))
        with monkeypatch.context() as patch:
            patch.setattr(join, "VERSION", "0.0.0")
            with pytest.raises(UsageError, match=r"another version of stretto.*version=.*0\.0\.0"):
                await enter(store, options(tmp_path))
        with pytest.raises(UsageError, match=r"--store-key on all hosts or on none.*tls=False, this host True"):
            await enter(store, options(tmp_path, shared=StoreOptions("etcd://h:1", "digits", ca="ca", certificate="c", key="k")))
        assert [await _name(store, "h1") for _ in range(3)] == ["h1", "h1.2", "h1.3"]

    asyncio.run(story())


def test_a_late_host_is_told_that_the_job_has_finished(tmp_path: Path) -> None:
    async def story() -> None:
        store = EmbeddedStore()
        ended = {**card(options(tmp_path)), "state": "finished", "digest": "abc", "id": "x"}
        await store.commit([Put(store_schema.ENDED, store_schema.text(ended))])
        with pytest.raises(AlreadyEnded, match="abc"):
            await enter(store, options(tmp_path))
        fresh, _ = await enter(store, options(tmp_path, "print(2)"))
        assert fresh["id"] != "x"

    asyncio.run(story())
