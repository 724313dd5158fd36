"""One tree of errors. A message says what happened, where, and what to do.

FedbiadError
├── PlanError        the plan (or an argument) is wrong; carries every problem found
├── DataError        data are missing, damaged or do not fit
├── LayoutError      a layout does not fit its model
├── RunError         a run cannot go on (no usable client, full disk)
├── RunDirError      a run directory is taken, damaged or not one of ours
├── UpdateError      a client's update cannot be sent; the round goes on without it
└── WireError        a message is damaged, of another run or round, or says what cannot be
"""

from __future__ import annotations


class FedbiadError(Exception):
    """Something the user can mend; shown without a traceback, exit code 2."""


class PlanError(FedbiadError):
    """Every problem of a plan at once."""

    def __init__(self, problems: list[str], where: str = "plan") -> None:
        self.problems, self.where = problems, where
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"{where}: {len(problems)} problem{'s' if len(problems) != 1 else ''}{lines}")

    def __reduce__(self) -> tuple[type[PlanError], tuple[list[str], str]]:
        """The same error in another process, not a message taken for a list."""
        return PlanError, (self.problems, self.where)


class DataError(FedbiadError):
    """Data are missing, damaged or do not fit."""


class LayoutError(FedbiadError):
    """A layout does not fit its model."""


class RunError(FedbiadError):
    """A run cannot go on."""


class RunDirError(FedbiadError):
    """A run directory is taken, damaged or not one of ours."""


class UpdateError(FedbiadError):
    """A client's update cannot be sent: the text says why, and the round goes on without it."""


class WireError(FedbiadError):
    """A message is damaged, of another run or round, or says what cannot be; the text says which."""
