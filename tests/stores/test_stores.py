"""What every store has to give: the same stories on the embedded one, on the same over TCP, and on etcd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stretto.membership.stores.store import Compacted, Guard, Put, Store, StoreChange
from stretto.membership.stores.watch_cache import WatchCache
from tests.stores.store_servers import EtcdProcess, Place, opened

Story = Callable[[Place, Store], Awaitable[None]]


def tell(story: Story, kind: str, etcd: EtcdProcess | None) -> None:
    async def play() -> None:
        async with asyncio.timeout(120), opened(kind, etcd) as place:
            store = place.client()
            await story(place, store)
            await store.close()

    asyncio.run(play())


async def collect(store: Store, prefix: str, *, after: int, count: int) -> list[StoreChange]:
    found: list[StoreChange] = []
    async for change in store.watch(prefix, after=after):
        found.append(change)
        if len(found) == count:
            return found
    return found


def test_entries_are_sorted_and_know_their_revisions(kind: str, etcd: EtcdProcess | None) -> None:
    async def story(place: Place, store: Store) -> None:
        first = await store.commit([Put("b/2", "two"), Put("b/1", "one"), Put("c", "other")])
        assert first is not None
        second = await store.commit([Put("b/2", "zwei")])
        assert second == first + 1
        entries, revision = await store.read("b/")
        assert revision == second
        assert [(e.key, e.value, e.revision, e.created) for e in entries] == [
            ("b/1", "one", first, first),
            ("b/2", "zwei", second, first),
        ]

    tell(story, kind, etcd)


def test_a_transaction_is_done_whole_or_not_at_all(kind: str, etcd: EtcdProcess | None) -> None:
    async def story(place: Place, store: Store) -> None:
        revision = await store.commit([Put("a", "1")], guards=[Guard("a", 0)])
        assert revision is not None
        assert await store.commit([Put("a", "2"), Put("b", "2")], guards=[Guard("a", 0)]) is None
        assert await store.commit([Put("a", "3"), Put("b", "3")], guards=[Guard("a", revision), Guard("b", 0)]) is not None
        assert await store.commit([Put("b", None)], guards=[Guard("a", revision)]) is None
        assert [(e.key, e.value) for e in (await store.read(""))[0]] == [("a", "3"), ("b", "3")]

    tell(story, kind, etcd)


def test_of_many_who_change_a_value_at_once_each_change_counts(kind: str, etcd: EtcdProcess | None) -> None:
    async def story(place: Place, store: Store) -> None:
        await store.commit([Put("count", "0")])
        refused = 0

        async def add(client: Store) -> None:
            nonlocal refused
            for _ in range(10):
                while True:
                    entry = (await client.read("count"))[0][0]
                    new = str(int(entry.value) + 1)
                    if await client.commit([Put("count", new)], guards=[Guard("count", entry.revision)]) is not None:
                        break
                    refused += 1

        clients = [place.client() for _ in range(4)]
        await asyncio.gather(*(add(client) for client in clients))
        assert (await store.read("count"))[0][0].value == "40"
        if kind != "embedded":  # in one process nobody is ever interrupted between the read and the write
            assert refused > 0
            await asyncio.gather(*(client.close() for client in clients))

    tell(story, kind, etcd)


def test_keys_go_with_their_lease_and_the_watch_says_so(kind: str, etcd: EtcdProcess | None) -> None:
    async def story(place: Place, store: Store) -> None:
        lease = await store.grant(1.0)
        revision = await store.commit([Put("stays", "x"), Put("goes", "x", lease), Put("goes too", "x", lease)])
        assert revision is not None
        changes = await collect(store, "goes", after=revision, count=2)
        assert sorted(change.key for change in changes) == ["goes", "goes too"]
        assert all(change.value is None for change in changes)
        assert [entry.key for entry in (await store.read(""))[0]] == ["stays"]
        assert not await store.renew(lease)
        assert await store.commit([Put("late", "x", lease)]) is None

    tell(story, kind, etcd)


def test_a_renewed_lease_lives_on_and_a_revoked_one_ends_at_once(kind: str, etcd: EtcdProcess | None) -> None:
    async def story(place: Place, store: Store) -> None:
        lease = await store.grant(3.0)
        revision = await store.commit([Put("k", "x", lease)])
        assert revision is not None
        for _ in range(10):
            await asyncio.sleep(0.5)
            assert await store.renew(lease)
        assert len((await store.read("k"))[0]) == 1
        await store.revoke(lease)
        assert (await store.read("k"))[0] == []
        await store.revoke(lease)

    tell(story, kind, etcd)


def test_a_watch_gives_every_change_in_order_from_the_past_on(kind: str, etcd: EtcdProcess | None) -> None:
    async def story(place: Place, store: Store) -> None:
        first = await store.commit([Put("w/a", "0")])
        assert first is not None
        for turn in range(1, 6):
            await store.commit([Put("w/a", str(turn)), Put("elsewhere", "x")])
        watching = asyncio.create_task(collect(store, "w/", after=first, count=8))
        await asyncio.sleep(0.2)
        await store.commit([Put("w/b", "6")])
        await store.commit([Put("w/a", None), Put("w/b", "7")])
        changes = await watching
        seen = [(change.key, change.value) for change in changes[:6]]
        assert seen == [("w/a", str(turn)) for turn in range(1, 6)] + [("w/b", "6")]
        assert {(change.key, change.value) for change in changes[6:]} == {("w/a", None), ("w/b", "7")}
        assert [change.revision for change in changes] == sorted(change.revision for change in changes)

    tell(story, kind, etcd)


def test_a_watch_across_a_gap_in_the_history_says_so(kind: str, etcd: EtcdProcess | None) -> None:
    async def story(place: Place, store: Store) -> None:
        first = await store.commit([Put("k", "0")])
        assert first is not None
        await store.commit([Put("k", "1")])
        await place.forget(store)
        with pytest.raises(Compacted):
            await collect(store, "k", after=first - 1, count=3)

    tell(story, kind, etcd)


def test_a_mirror_is_right_again_after_a_gap(kind: str, etcd: EtcdProcess | None) -> None:
    async def story(place: Place, store: Store) -> None:
        await store.commit([Put("k", "0"), Put("gone", "x")])
        mirror = WatchCache(store, pause_s=0.05)
        await mirror.refresh()
        await store.commit([Put("k", "1"), Put("gone", None)])
        await place.forget(store)
        following = asyncio.create_task(mirror.run())
        while mirror.entries.get("gone") is not None or mirror.entries["k"].value != "1":
            await mirror.changed(0.5)
        await store.commit([Put("k", "2")])
        while mirror.entries["k"].value != "2":
            await mirror.changed(0.5)
        following.cancel()

    tell(story, kind, etcd)


def test_a_watcher_that_does_not_read_holds_nobody_up(kind: str, etcd: EtcdProcess | None) -> None:
    async def story(place: Place, store: Store) -> None:
        slow, quick = place.client(), place.client()
        first = await store.commit([Put("k", "begin")])
        assert first is not None
        idle = slow.watch("k", after=first - 1).__aiter__()
        assert (await idle.__anext__()).value == "begin"
        body = "x" * 20_000
        reading = asyncio.create_task(collect(quick, "k", after=first, count=40))
        await asyncio.sleep(0.1)
        for turn in range(40):
            await store.commit([Put("k", f"{turn} {body}")])
        assert [change.value.split()[0] for change in await reading if change.value] == [str(turn) for turn in range(40)]
        assert (await store.read("k"))[0][0].value.startswith("39")
        await idle.aclose()  # type: ignore[attr-defined]
        for client in (slow, quick):
            if kind != "embedded":
                await client.close()

    tell(story, kind, etcd)
