"""`stretto top` on a real server, driven by textual's own pilot."""

from __future__ import annotations

import asyncio

from server_harness import Running, job
from textual.widgets import DataTable, Static

from stretto.cli.top import Top


def test_top_shows_jobs_as_they_come_explains_them_and_ends_them(server: Running) -> None:
    async def look() -> None:
        with server.client() as client, server.client() as other:
            app = Top(client)
            async with app.run_test(size=(200, 40)) as pilot:
                made = other.submit(job("seen", steps=100_000, step_s=0.1, most=2)).id

                async def wait(found, what: str) -> None:
                    for _ in range(600):
                        await pilot.pause(0.1)
                        if found():
                            return
                    raise AssertionError(what)

                table = app.query_one(DataTable)
                await wait(lambda: made in app.jobs and app.jobs[made].state == "running", "the job is shown")
                assert table.row_count == 1
                await wait(lambda: "slots" in str(app.query_one("#slots", Static).render()), "the slots are shown")
                await pilot.press("e")
                await wait(lambda: "'seen' has" in str(app.query_one("#said", Static).render()), "the explanation")
                await pilot.press("x")
                await wait(lambda: app.jobs[made].state.ended, "it is cancelled from here")
                assert table.row_count == 0
                await pilot.press("a")
                await wait(lambda: table.row_count == 1, "ended ones are shown too")
                other.remove(made)
                await wait(lambda: table.row_count == 0, "it is gone from here as well")

    asyncio.run(look())
