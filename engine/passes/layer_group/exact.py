"""The best time steps of a group by integer programming: `--opt 3`, and the measure of what `--opt 2` leaves behind.

Every op keeps a row of its own; where each transfer runs is chosen, so that the cycles of the whole group (R4) are
least and no row holds more bytes than there are. Merging rows and finding addresses is left to the other parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from engine.errors import UserError
from engine.passes.layer_group.allocation import Request
from engine.passes.layer_group.placing import Draft
from engine.passes.layer_group.plan import BufferKind
from engine.passes.layer_group.time_steps import COMPUTE_STAGE, LOAD_STAGE, STORE_STAGE, Table, Transfer
from engine.tpu.chip import Chip

SECONDS = 10.0
"""Time limit of one program."""

_Term = tuple[int, float]


def best_table(found: Draft, chip: Chip) -> Table | None:
    """The draft's time steps with the transfers where they cost least; None when they fit nowhere.

    Raises UserError without SciPy, whose solver (HiGHS) is used.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError:
        raise UserError(
            "--opt 3 needs SciPy, which is not installed; install it (pip install scipy) or use --opt 2"
        ) from None
    program = _Program.of(found)
    rows = list(program.constraints(chip))
    matrix = np.zeros((len(rows), program.size))
    for number, (terms, _, _) in enumerate(rows):
        for variable, factor in terms:
            matrix[number, variable] += factor
    answer = milp(
        program.costs(),
        constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
        integrality=program.integers(),
        bounds=Bounds(program.least(), program.most()),
        options={"time_limit": SECONDS},
    )
    return None if answer.x is None else program.table(answer.x)


@dataclass(frozen=True)
class _Program:
    """Variables: for each transfer and row that it may run in, 1 if it does; then the cycles of each pipeline step and
    row."""

    found: Draft
    places: dict[tuple[int, int], int]
    steps: list[tuple[tuple[int | None, ...], int]]

    @classmethod
    def of(cls, found: Draft) -> _Program:
        pairs = [
            (number, row)
            for number, transfer in enumerate(found.table.transfers)
            for row in range(transfer.earliest, transfer.latest + 1)
        ]
        return cls(found, {pair: i for i, pair in enumerate(pairs)}, list(found.profile.steps.items()))

    @property
    def size(self) -> int:
        """Number of variables."""
        return len(self.places) + len(self.steps) * self.found.table.rows

    def cycles(self, step: int, row: int) -> int:
        """The variable with the cycles of a pipeline step's row."""
        return len(self.places) + step * self.found.table.rows + row

    def costs(self) -> np.ndarray:
        """Weight of each variable in the cycles of the group."""
        weights = np.zeros(self.size)
        for number, (_, times) in enumerate(self.steps):
            for row in range(self.found.table.rows):
                weights[self.cycles(number, row)] = times
        return weights

    def integers(self) -> np.ndarray:
        """1 for variables that are whole."""
        return (np.arange(self.size) < len(self.places)).astype(int)

    def least(self) -> np.ndarray:
        """Lower bounds: a row takes at least its computations."""
        bounds = np.zeros(self.size)
        table = self.found.table
        for number, (active, _) in enumerate(self.steps):
            kind = active[COMPUTE_STAGE]
            for row, ops in enumerate(table.computes):
                if kind is not None:
                    computing = self.found.profile.slices[kind].computing
                    bounds[self.cycles(number, row)] = sum(computing[op] for op in ops)
        return bounds

    def most(self) -> np.ndarray:
        """Upper bounds."""
        return np.where(self.integers() == 1, 1.0, np.inf)

    def constraints(self, chip: Chip) -> Iterator[tuple[list[_Term], float, float]]:
        """Terms with the bounds of their sum."""
        table = self.found.table
        for number, transfer in enumerate(table.transfers):
            rows = range(transfer.earliest, transfer.latest + 1)
            yield [(self.places[number, row], 1.0) for row in rows], 1.0, 1.0
        for step in range(len(self.steps)):
            for row in range(table.rows):
                yield [(self.cycles(step, row), 1.0), *self._moving(step, row)], 0.0, np.inf
        for row in range(table.rows):
            fixed, terms = self._memory(row)
            yield terms, 0.0, float(chip.lmem_bytes - fixed)

    def _moving(self, step: int, row: int) -> Iterator[_Term]:
        """Minus the cycles of the transfers of a step's row."""
        for number, transfer in enumerate(self.found.table.transfers):
            kind = self.steps[step][0][transfer.stage]
            place = self.places.get((number, row))
            if kind is None or place is None or (transfer.held and kind != 0):
                continue
            costs = self.found.profile.slices[kind].moving([transfer])
            yield place, -float(costs[0])

    def _memory(self, row: int) -> tuple[int, list[_Term]]:
        """Bytes that are live in a row whatever is chosen, and those that depend on where transfers run."""
        fixed, terms = 0, []
        for request in self.found.requests:
            if request.kind is BufferKind.SCRATCH or request.held:
                fixed += request.nbytes if request.rows >> row & 1 else 0
                continue
            first, last = _used(request)
            if first <= row <= last:
                fixed += request.nbytes
                continue
            for number, transfer in self._transfers_of(request):
                terms += [
                    (place, float(request.nbytes)) for place in self._alive(number, transfer, row, last)
                ]
        return fixed, terms

    def _transfers_of(self, request: Request) -> Iterator[tuple[int, Transfer]]:
        roots = self.found.group.roots
        for number, transfer in enumerate(self.found.table.transfers):
            if roots[transfer.value] == request.name:
                yield number, transfer

    def _alive(self, number: int, transfer: Transfer, row: int, last: int) -> list[int]:
        """Places of a transfer with which its memory is live in a row without use by an op."""
        rows = range(transfer.earliest, transfer.latest + 1)
        if transfer.is_load:
            same_slice = row <= last if transfer.stage == COMPUTE_STAGE else row > last
            chosen = [at for at in rows if at <= row and same_slice]
            assert transfer.stage in (LOAD_STAGE, COMPUTE_STAGE)
        elif transfer.stage == STORE_STAGE and row > last:
            chosen = list(rows)
        elif transfer.stage == COMPUTE_STAGE and row < last:
            chosen = []
        else:
            chosen = [at for at in rows if at >= row]
        return [self.places[number, at] for at in chosen]

    def table(self, values: np.ndarray) -> Table:
        """The time steps that the solution means."""
        chosen = {number: row for (number, row), i in self.places.items() if values[i] > 0.5}
        transfers = tuple(
            replace(transfer, row=chosen[number])
            for number, transfer in enumerate(self.found.table.transfers)
        )
        return replace(self.found.table, transfers=transfers)


def _used(request: Request) -> tuple[int, int]:
    """First and last row in which an op touches the memory."""
    mask = request.computed
    return (mask & -mask).bit_length() - 1, mask.bit_length() - 1
