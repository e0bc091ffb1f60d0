from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.stores.store_servers import EtcdProcess


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess | None]:
    if shutil.which("etcd") is None:
        yield None
        return
    process = EtcdProcess(tmp_path_factory.mktemp("etcd"))
    process.start()
    yield process
    process.stop()


@pytest.fixture(params=["embedded", "tcp", "etcd"])
def kind(request: pytest.FixtureRequest, etcd: EtcdProcess | None) -> str:
    if request.param == "etcd" and etcd is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    return request.param
