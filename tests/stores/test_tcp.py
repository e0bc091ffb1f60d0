"""What only the store over TCP has: a token, TLS, a connection that can break."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from pathlib import Path

import pytest

from stretto.core.errors import Refused
from stretto.membership.stores.embedded import EmbeddedStore
from stretto.membership.stores.store import Put, StoreError
from stretto.membership.stores.tcp import StoreServer, TcpStore, proof
from tests.stores.store_servers import ANSWER_S, Tcp, certificates, eventually, free_port


def test_a_client_with_another_token_is_refused_and_reads_nothing() -> None:
    async def story() -> None:
        place = Tcp()
        await place.start()
        stranger = TcpStore(*place.address, token="open", answer_s=ANSWER_S)
        with pytest.raises(Refused, match="token"):
            await stranger.read("")
        friend = place.client()
        assert await friend.commit([Put("k", "1")]) is not None
        await friend.close()
        await place.server.close()

    asyncio.run(story())


def test_a_server_that_does_not_know_the_token_is_not_believed() -> None:
    async def story() -> None:
        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(json.dumps({"stretto": 1, "challenge": "c"}).encode() + b"\n")
            hello = json.loads(await reader.readline())
            # The best that it can do: send the client's own proof back.
            writer.write(json.dumps({"ok": True, "proof": hello["proof"]}).encode() + b"\n")
            await writer.drain()

        server = await asyncio.start_server(impostor, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Refused):
            await TcpStore("127.0.0.1", port, token="sesame", answer_s=ANSWER_S).read("")
        server.close()

    asyncio.run(story())
    assert proof("t", challenge="c", role="client") != proof("t", challenge="c", role="server")


@pytest.mark.parametrize("garbage", [b"\n", b"not json\n", b"[]\n", b'{"proof": 1}\n', b"x" * 5_000_000, b""])
def test_garbage_ends_its_own_connection_and_nothing_else(garbage: bytes) -> None:
    async def story() -> None:
        place = Tcp()
        await place.start()
        friend = place.client()
        await friend.commit([Put("k", "1")])
        reader, writer = await asyncio.open_connection(*place.address)
        await reader.readline()
        try:
            writer.write(garbage)
            await writer.drain()
            writer.write_eof()
            await reader.read()
        except OSError:
            pass
        writer.close()
        assert [entry.value for entry in (await friend.read("k"))[0]] == ["1"]
        await friend.close()
        await place.server.close()

    asyncio.run(story())


def test_an_unknown_request_is_an_error_and_the_connection_lives_on() -> None:
    async def story() -> None:
        place = Tcp()
        await place.start()
        client = place.client()
        assert isinstance(client, TcpStore)
        with pytest.raises(StoreError, match="unknown request"):
            await client._request("explode")
        assert await client.commit([Put("k", "1")]) is not None
        await client.close()
        await place.server.close()

    asyncio.run(story())


def test_a_server_that_comes_back_is_found_again_and_the_watch_resumes_by_revision() -> None:
    async def story() -> None:
        place = Tcp()
        await place.start()
        client = place.client()
        first = await client.commit([Put("k", "1")])
        assert first is not None
        seen: list[str | None] = []

        async def watch() -> None:
            async for change in client.watch("k", after=first):
                seen.append(change.value)

        watching = asyncio.create_task(watch())
        await client.commit([Put("k", "2")])
        while seen != ["2"]:
            await asyncio.sleep(0.01)
        await place.server.close()
        with pytest.raises(StoreError):
            await watching
        await place.store.commit([Put("k", "3")])
        await place.restart()
        assert await eventually(client, "k") == ["k"]
        async for change in client.watch("k", after=first + 1):
            assert change.value == "3"
            break
        await client.close()
        await place.server.close()

    asyncio.run(story())


class Cable:
    """Between a client and a server; what is sent while it is pulled is never delivered, and nobody is told."""

    def __init__(self, there: tuple[str, int]) -> None:
        self.there = there
        self.pulled = False
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        return "127.0.0.1", self._server.sockets[0].getsockname()[1]

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(*self.there)
        self._writers += [writer, forth]
        await asyncio.gather(self._carry(reader, forth), self._carry(back, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not self.pulled:
                writer.write(data)

    def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()


def test_a_server_that_falls_silent_is_noticed_by_the_watch_too_and_found_again() -> None:
    async def story() -> None:
        place = Tcp()
        await place.start()
        cable = Cable(place.address)
        client = TcpStore(*await cable.start(), token="sesame", answer_s=2.0)
        first = await client.commit([Put("k", "1")])
        assert first is not None
        watching = asyncio.create_task(anext(aiter(client.watch("k", after=first))))
        assert await client.commit([Put("other", "1")]) is not None
        cable.pulled = True
        with pytest.raises(StoreError, match="no answer"):
            await client.read("k")
        async with asyncio.timeout(60):
            with pytest.raises(StoreError):
                await watching
        cable.pulled = False
        assert await eventually(client, "k") == ["k"]
        await client.close()
        cable.close()
        await place.server.close()

    asyncio.run(story())


def test_nobody_there_is_said_with_the_address() -> None:
    async def story() -> None:
        port = free_port()
        with pytest.raises(StoreError, match=f"127.0.0.1:{port}"):
            await TcpStore("127.0.0.1", port, token="t", answer_s=ANSWER_S).read("")

    asyncio.run(story())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_store_can_be_under_tls_and_plain_text_is_then_refused(tmp_path: Path) -> None:
    files = certificates(tmp_path)

    async def story() -> None:
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(files["certificate"], files["key"])
        server = StoreServer(EmbeddedStore(), token="sesame")
        host, port = await server.start("127.0.0.1", 0, tls=serving)
        trusting = ssl.create_default_context(cafile=str(files["ca"]))
        client = TcpStore(host, port, token="sesame", answer_s=ANSWER_S, tls=trusting)
        assert await client.commit([Put("k", "1")]) is not None
        with pytest.raises(StoreError):
            await TcpStore(host, port, token="sesame", answer_s=2.0).read("")
        with pytest.raises(StoreError):
            await TcpStore(host, port, token="sesame", answer_s=ANSWER_S, tls=ssl.create_default_context()).read("")
        await client.close()
        await server.close()

    asyncio.run(story())
