"""A job whose etcd asks who is there: users with passwords, TLS with client certificates; and what is said to who may not."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from launching import stretto

from tests.hosts.cluster import Agent, Job, paced
from tests.hosts.loopback import Loopback, start
from tests.stores.store_servers import EtcdProcess, certificates

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("etcd") is None or shutil.which("etcdctl") is None,
        reason="etcd is not installed: apt-get install etcd-server etcd-client",
    ),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed: apt-get install openssl"),
]
PASSWORD = "p@ss:word/with-everything"
SECRET = {"STRETTO_STORE_TOKEN": PASSWORD}


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    made: list[Job] = []

    def job(store: str, *, epochs: int = 20) -> Job:
        made.append(Loopback(tmp_path, store).job(paced(epochs=epochs)))
        return made[-1]

    yield job
    for one in made:
        one.stop()


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """An etcd with a user `trainer` that may use the keys under `stretto/` and nothing else."""
    process = EtcdProcess(tmp_path_factory.mktemp("users"))
    process.start()
    try:
        _control(process, "user", "add", "trainer", "--interactive=false", given=PASSWORD)
        for words in (
            "user add root:root",
            "user grant-role root root",
            "role add training",
            "role grant-permission training readwrite --prefix stretto/",
            "user grant-role trainer training",
            "auth enable",
        ):
            _control(process, *words.split())
        yield process
    finally:
        process.stop()


def _control(process: EtcdProcess, *words: str, given: str = "") -> None:
    command = ["etcdctl", "--endpoints", process.endpoint, *words]
    done = subprocess.run(
        command, env={**os.environ, "ETCDCTL_API": "3"}, input=f"{given}\n", text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EtcdProcess, list[str], dict[str, Path]]]:
    """An etcd with TLS that asks for client certificates, the options that open it, and the files of somebody else."""
    folder, other = tmp_path_factory.mktemp("sealed"), tmp_path_factory.mktemp("stranger")
    files = certificates(folder)
    process = EtcdProcess(folder, tls=files)
    process.start()
    try:
        yield process, options(files), certificates(other)
    finally:
        process.stop()


def options(files: dict[str, Path]) -> list[str]:
    return ["--store-ca", str(files["ca"]), "--store-cert", str(files["certificate"]), "--store-key", str(files["key"])]


def refused(agent: Agent) -> str:
    assert agent.end() == 2, agent.output
    assert "Traceback" not in agent.output and PASSWORD not in agent.output
    return agent.output


# ---- users


@pytest.mark.slow
def test_two_agents_train_through_an_etcd_with_users_and_the_password_is_written_nowhere(
    near: Callable[..., Job], users: EtcdProcess, tmp_path: Path
) -> None:
    one = near(f"etcd://trainer@{users.endpoint}", epochs=300)
    file = tmp_path / "secret"
    file.write_text(PASSWORD + "\n")
    start(one, "h1", "--slots", "1", env=SECRET)
    start(one, "h2", "--slots", "1", "--store-token", str(file))
    one.until_workers(2)
    listed = stretto("ps", "--store", one.store, "--json", cwd=one.folder, env=SECRET)
    assert listed.returncode == 0, listed.stderr
    assert [row["members"] for row in json.loads(listed.stdout)] == [2]
    digest = one.finish()
    for agent in one.agents:
        for path in agent.folder.path.rglob("*"):
            assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path
    assert digest == one.cluster.reference(one)


def test_a_password_in_the_address_works_and_is_not_kept(near: Callable[..., Job], users: EtcdProcess) -> None:
    one = near(f"etcd://trainer:{quote(PASSWORD, safe='')}@{users.endpoint}", epochs=3)
    agent = start(one, "h1", "--slots", "1")
    one.finish()
    held = agent.folder.read(agent.folder.request)
    assert held is not None and held["shared"]["store"] == f"etcd://trainer@{users.endpoint}"


@pytest.mark.parametrize(
    ("who", "secret", "said"),
    [
        (
            "trainer@",
            "guess",
            "does not accept user 'trainer' with this password: check both; the password is read from --store-token",
        ),
        ("nobody@", PASSWORD, "does not accept user 'nobody'"),
        ("", PASSWORD, "etcd asks for a user: write --store etcd://USER@"),
    ],
)
def test_who_may_not_come_in_is_told_why(near: Callable[..., Job], users: EtcdProcess, who: str, secret: str, said: str) -> None:
    one = near(f"etcd://{who}{users.endpoint}")
    assert said in refused(start(one, "h1", env={"STRETTO_STORE_TOKEN": secret}))


def test_keys_that_the_user_may_not_write_are_named_with_the_grant_that_helps(near: Callable[..., Job], users: EtcdProcess) -> None:
    text = refused(start(near(f"etcd://trainer@{users.endpoint}/lab"), "h1", env=SECRET))
    assert "user 'trainer' may not read and write 'lab/'" in text and "readwrite --prefix lab/" in text


def test_a_user_where_etcd_has_none_is_told_so(near: Callable[..., Job], tmp_path: Path) -> None:
    process = EtcdProcess(tmp_path)
    process.start()
    try:
        text = refused(start(near(f"etcd://trainer@{process.endpoint}"), "h1", env=SECRET))
    finally:
        process.stop()
    assert "no users switched on" in text and "leave the user out" in text


# ---- TLS


@pytest.mark.slow
def test_two_agents_train_through_an_etcd_that_asks_for_client_certificates(near: Callable[..., Job], sealed: tuple) -> None:
    process, own, _ = sealed
    one = near(f"etcds://{process.endpoint}", epochs=300)
    start(one, "h1", "--slots", "1", *own)
    start(one, "h2", "--slots", "1", *own)
    one.until_workers(2)
    scaled = stretto("scale", one.name, "1", "--store", one.store, *own, "--wait", cwd=one.folder)
    assert scaled.returncode == 0, scaled.stderr
    printed = stretto("logs", one.name, "--store", one.store, *own, cwd=one.folder)
    assert "[h1.w0] hello from h1.w0" in printed.stdout, printed.stderr
    agents = json.loads(stretto("ps", "--store", one.store, *own, "--json", cwd=one.folder).stdout)[0]["hosts"]
    with socket.create_connection(agents[0]["address"], timeout=60) as plain:
        plain.sendall(b"{}\n")
        assert b"challenge" not in plain.recv(1 << 16), "agents that have certificates speak without TLS"
    assert one.finish() == one.cluster.reference(one)


@pytest.mark.slow
def test_each_mistake_with_certificates_names_the_option_that_mends_it(near: Callable[..., Job], sealed: tuple) -> None:
    process, own, other = sealed
    one = near(f"etcds://{process.endpoint}")
    strange = options(other)
    assert f"--store-ca {other['ca']} did not sign" in refused(start(one, "h1", *strange[:2], *own[2:]))
    assert "trusts: give the CA that did with --store-ca" in refused(start(one, "h1"))
    assert "asks for a client certificate: give one with --store-cert" in refused(start(one, "h1", *own[:2]))
    assert "does not accept the client certificate" in refused(start(one, "h1", *own[:2], *strange[2:]))
    assert "TLS files of the store cannot be used" in refused(start(one, "h1", *own[:4], *strange[4:]))
    assert "TLS files of the store cannot be used" in refused(start(one, "h1", "--store-ca", "/nowhere"))
    one.store = f"etcd://{process.endpoint}"
    assert "write etcds://" in refused(start(one, "h1"))


def test_tls_to_an_etcd_without_it_is_told_so(near: Callable[..., Job], users: EtcdProcess) -> None:
    assert "does not speak TLS, write etcd://" in refused(start(near(f"etcds://{users.endpoint}"), "h1"))
