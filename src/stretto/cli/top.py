"""`stretto top`: jobs and slots, live, in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, cast

from textual import work
from textual.app import App, ComposeResult
from textual.widgets import DataTable, Footer, Header, Static

from stretto.cli.options import Server
from stretto.cli.server_commands import job_row
from stretto.cli.targets import client
from stretto.core.errors import StrettoError
from stretto.core.text import quantity
from stretto.server.client import Client, Frame
from stretto.server.models import ClusterAllocation, JobDetails, JobSummary

COLUMNS = ("id", "name", "state", "workers", "step", "left", "loss", "samples/s", "age", "why")
BLOCK = "█"
AGAIN_S = 2.0


def command(*, server: Server = None) -> None:
    with client(server) as api:
        api.overview()
        Top(api).run()


class Top(App[None]):
    """Reads the stream on a thread; each message updates only the jobs that it names."""

    TITLE = "stretto top"
    BINDINGS: ClassVar = [
        ("q", "quit", "Quit"),
        ("a", "all", "Ended jobs"),
        ("e", "explain", "Explain"),
        ("p", "pause", "Pause"),
        ("r", "resume", "Resume"),
        ("x", "cancel", "Cancel"),
        ("plus", "scale(1)", "+1"),
        ("minus", "scale(-1)", "-1"),
    ]
    CSS = "#slots {height: auto; padding: 0 1;} #said {height: auto; padding: 0 1; color: $text-muted;} DataTable {height: 1fr;}"

    def __init__(self, api: Client) -> None:
        super().__init__()
        self.api = api
        self.jobs: dict[str, JobSummary] = {}
        self.ended = False

    def compose(self) -> ComposeResult:
        yield Header()
        yield Static(id="slots")
        yield DataTable(id="jobs", cursor_type="row")
        yield Static(id="said")
        yield Footer()

    def on_mount(self) -> None:
        self._table().add_columns(*((name, name) for name in COLUMNS))
        self.follow()

    @work(thread=True, exclusive=True, group="follow")
    def follow(self) -> None:
        last: int | None = None
        while self.is_running:
            try:
                self.call_from_thread(self.load, list(self.api.jobs()))
                for frame in self.api.stream(last_event_id=last):
                    last = frame.id if frame.id is not None else last
                    self.call_from_thread(self.show_frame, frame)
                    if not self.is_running:
                        return
            except StrettoError as error:
                self.call_from_thread(self.show_message, f"{error}; trying again")
            time.sleep(AGAIN_S)

    def load(self, jobs: list[JobSummary]) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.draw()
        self.show_message("connected")

    def show_frame(self, frame: Frame) -> None:
        if frame.kind == "jobs":
            for item in frame.data["items"]:
                job = JobSummary.model_validate(item)
                self.jobs[job.id] = job
            self.draw()
        elif frame.kind == "allocation":
            self.slots(ClusterAllocation.model_validate(frame.data))
        elif frame.kind == "event":
            if frame.data["kind"] == "removed":
                self.jobs.pop(str(frame.data["job"]), None)
                self.draw()
            self.show_message(f"{frame.data['kind']}: {frame.data['text']}")

    def _table(self) -> DataTable[str]:
        return cast("DataTable[str]", self.query_one("#jobs"))

    def draw(self) -> None:
        table = self._table()
        shown = [job for job in self.jobs.values() if self.ended or not job.state.ended]
        shown.sort(key=lambda job: -job.submitted_at)
        at = table.cursor_row
        table.clear()
        for job in shown[:500]:
            table.add_row(*(str(cell) for cell in job_row(job)), key=job.id)
        if shown:
            table.move_cursor(row=min(at, len(shown) - 1))

    def slots(self, allocation: ClusterAllocation) -> None:
        colours = ("cyan", "green", "magenta", "yellow", "blue", "red")
        parts = [f"[{colours[place % len(colours)]}]{BLOCK * share.workers}[/]" for place, share in enumerate(allocation.items)]
        free = "·" * allocation.free
        text = (
            f"{''.join(parts)}{free}  {allocation.slots - allocation.free} of {allocation.slots} slots, policy {allocation.policy}"
        )
        self.query_one("#slots", Static).update(text)

    def show_message(self, text: str) -> None:
        self.query_one("#said", Static).update(text.replace("[", "\\["))

    def chosen(self) -> JobSummary | None:
        table = self._table()
        if not table.row_count:
            return None
        key = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        return self.jobs.get(str(key))

    def action_all(self) -> None:
        self.ended = not self.ended
        self.draw()

    def action_explain(self) -> None:
        def explain(job: JobSummary) -> str:
            return self.api.explain(job.id).sentence

        self._on_chosen(explain)

    def action_pause(self) -> None:
        self._change(self.api.pause)

    def action_resume(self) -> None:
        self._change(self.api.resume)

    def action_cancel(self) -> None:
        self._change(self.api.cancel)

    def _change(self, verb: Callable[[str], JobDetails]) -> None:
        def change(job: JobSummary) -> str:
            return f"{job.name} is {verb(job.id).state}"

        self._on_chosen(change)

    def action_scale(self, by: int) -> None:
        def change(job: JobSummary) -> str:
            workers = max(job.min, min(job.max, (job.wish or job.wanted or job.workers) + by))
            self.api.scale(job.id, workers)
            return f"{job.name} is asked to have {quantity(workers, 'worker')}"

        self._on_chosen(change)

    @work(thread=True, group="on_chosen")
    def _on_chosen(self, what: Callable[[JobSummary], str]) -> None:
        job = self.call_from_thread(self.chosen)
        if job is None:
            return
        try:
            self.call_from_thread(self.show_message, what(job))
        except StrettoError as error:
            self.call_from_thread(self.show_message, str(error))
