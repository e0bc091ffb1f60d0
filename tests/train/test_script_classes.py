"""Attributes of a script's objects that decide what is trained, found in their classes."""

from __future__ import annotations

import linecache

from stretto.train.script_checks.class_attributes import attributes

CLASSES = """
class Annealer:
    def __init__(self):
        self.t, self.calls = 0, 0
    def __call__(self):
        self.t += 1
        self.calls += 1
        return 1 / self.t
class Stopping:
    def on_epoch_end(self, trainer, loss):
        self.losses.append(loss)
        self.wait += 1
        if self.wait > 3:
            trainer.should_stop = True
class Meter:
    def update(self, value):
        self.n += 1
        if self.n > 10:
            return
"""


def test_attributes_that_count_and_decide_are_found_and_those_that_only_keep_are_not():
    linecache.cache["<classes>"] = (len(CLASSES), None, CLASSES.splitlines(keepends=True), "<classes>")
    found = attributes("<classes>")
    assert found["Annealer"] == ({"t"}, set())
    assert found["Stopping"] == (set(), {"wait"})
    assert found["Meter"] == (set(), set())
