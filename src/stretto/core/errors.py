"""The one tree of exceptions.

StrettoError
├── UsageError          the caller's mistake: what, the value, the bound, the fix; shown without a traceback
│   ├── ScriptError     a training script uses the library in a way that cannot be right
│   └── RunNotFound     no run of that name
├── Refused             the job will not take this worker, checkpoint or message: the difference is spelled out
│   └── Stale           it carries the number of an older roster or term
├── Broken              the roster cannot go on: a peer died or hung; handled inside the library
├── SchemaError         a message or a journal line does not fit its kind: kind, key and value are named
├── PolicyError         a scheduling policy raised, took too long or gave an impossible answer
└── JobFailed           the job has ended without finishing; the text has the first cause
"""


class StrettoError(Exception):
    """Everything the library raises on purpose."""


class UsageError(StrettoError):
    """The caller's mistake. The message says what happened, the value, the bound and the fix."""


class ScriptError(UsageError):
    """A training script uses the library in a way that cannot be right."""


class RunNotFound(UsageError):
    """There is no run of that name."""


class Refused(StrettoError):
    """A worker, checkpoint or message that does not fit the job."""


class Stale(Refused):
    """A message or write with the number of an older roster or term."""


class Broken(StrettoError):
    """The roster cannot go on. Raised by exchanges, handled at the edge of a step."""


class SchemaError(StrettoError):
    """A message or a journal line that does not fit its kind."""


class PolicyError(StrettoError):
    """A policy raised, took too long, or answered with something impossible."""


class JobFailed(StrettoError):
    """The job has ended without finishing."""
