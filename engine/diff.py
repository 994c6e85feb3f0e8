"""What a pass (or several) did to a module: the ops of two snapshots aligned by where they came from.

A text diff of LLM IR is slow and misleading: renumbered values differ in every line, and one inserted op makes equal
layers look replaced. Ops carry their origin through all passes, so here they are aligned by it, in time linear in the
number of ops (but for finding moved ops, n log n).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from engine.snapshot import OpRecord, Snapshot, is_computation

HunkKind = Literal["equal", "changed", "added", "removed"]
LineKind = Literal["equal", "moved", "removed", "added", "gap"]

Signature = tuple[Hashable, ...]


@dataclass(frozen=True)
class Row:
    """One op beside what it became; None where the other side has nothing."""

    before: OpRecord | None
    after: OpRecord | None
    equal: bool


@dataclass(frozen=True)
class Hunk:
    """All ops of one origin, before and after.

    key: the origin. before_at, after_at: positions of the ops in their snapshots. rows: the ops side by side, equal
    ones paired. moved: the ops stand at another place among the others than before.
    """

    kind: HunkKind
    key: str
    before: tuple[OpRecord, ...]
    after: tuple[OpRecord, ...]
    before_at: tuple[int, ...]
    after_at: tuple[int, ...]
    rows: tuple[Row, ...]
    moved: bool = False

    @property
    def is_quiet(self) -> bool:
        """Nothing happened to these ops."""
        return self.kind == "equal" and not self.moved


@dataclass(frozen=True)
class DiffCounts:
    """Ops that are new, gone, or equal but at another place."""

    added: int
    removed: int
    moved: int

    @property
    def any(self) -> bool:
        """True when the sides differ."""
        return bool(self.added or self.removed or self.moved)

    def __str__(self) -> str:
        moved = f" ↕{self.moved}" if self.moved else ""
        return f"+{self.added} −{self.removed}{moved}"


@dataclass(frozen=True)
class Diff:
    """Two snapshots aligned: hunks in the order of `after`, those without an after side at their old place."""

    hunks: tuple[Hunk, ...]

    def counts(self, counted: Callable[[OpRecord], bool] = lambda op: True) -> DiffCounts:
        """How many ops differ, of those that are `counted` (default: all, weights and inputs included)."""
        rows = [row for hunk in self.hunks for row in hunk.rows if not row.equal]
        moved = [op for hunk in self.hunks if hunk.moved and hunk.kind == "equal" for op in hunk.after]
        return DiffCounts(
            sum(row.after is not None and counted(row.after) for row in rows),
            sum(row.before is not None and counted(row.before) for row in rows),
            sum(map(counted, moved)),
        )

    def summary(self) -> str:
        """The ops that compute and differ, as pass lists count ops, and beside them all others: `+31 −18 ops`."""
        ops, given = self.counts(is_computation), self.counts(lambda op: not is_computation(op))
        parts = [f"{ops} ops"] if ops.any else []
        parts += [f"{given} inputs, weights, return"] if given.any else []
        return ", ".join(parts) or "no difference"

    def before_ops(self) -> tuple[OpRecord, ...]:
        """The ops of the earlier snapshot in program order."""
        return _in_order((at, op) for h in self.hunks for at, op in zip(h.before_at, h.before, strict=True))

    def after_ops(self) -> tuple[OpRecord, ...]:
        """The ops of the later snapshot in program order."""
        return _in_order((at, op) for h in self.hunks for at, op in zip(h.after_at, h.after, strict=True))


def _in_order(items: Iterator[tuple[int, OpRecord]]) -> tuple[OpRecord, ...]:
    return tuple(op for _, op in sorted(items, key=lambda item: item[0]))


def diff(before: Snapshot, after: Snapshot) -> Diff:
    """Align two snapshots of one module.

    Ops of one first origin form one hunk: a `top.MLP` stands beside the ops that it became. Two ops are equal when
    name, attributes, types and the origins of their operands are; value numbers and lines do not count.
    """
    old, new = _Side.of(before.ops), _Side.of(after.ops)
    old_groups, new_groups = _grouped(old.keys, new.keys)
    hunks = [_hunk(key, old, new, old_groups.get(key, ()), at) for key, at in new_groups.items()]
    moved = _moved(hunks)
    placed = [_as_moved(hunk) if index in moved else hunk for index, hunk in enumerate(hunks)]
    removed = [_hunk(key, old, new, at, ()) for key, at in old_groups.items() if key not in new_groups]
    return Diff(tuple(_with_removed(placed, removed)))


# -- grouping ------------------------------------------------------------------------------------------------------

Identity = tuple[str, int]
"""An origin and, where the same origin occurs in several separate runs on both sides, which run."""

Groups = Mapping[Identity, Sequence[int]]


@dataclass(frozen=True)
class _Side:
    ops: Sequence[OpRecord]
    keys: Sequence[str]
    signatures: Sequence[Signature]

    @classmethod
    def of(cls, ops: Sequence[OpRecord]) -> _Side:
        keys = [_key(op) for op in ops]
        producer = {name: key for op, key in zip(ops, keys, strict=True) for name in op.results}
        return cls(ops, keys, [_signature(op, producer) for op in ops])


def _key(op: OpRecord) -> str:
    return op.origins[0] if op.origins else op.name


def _signature(op: OpRecord, producer: Mapping[str, str]) -> Signature:
    return (
        op.name,
        _frozen(op.attributes),
        op.operand_types,
        op.result_types,
        tuple(producer.get(name, name) for name in op.operands),
    )


def _frozen(value: Any) -> Hashable:
    """A hashable stand-in for an attribute, True and 1 told apart."""
    if isinstance(value, Mapping):
        return tuple((name, _frozen(value[name])) for name in sorted(value))
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return type(value).__name__, repr(value)


def _grouped(old: Sequence[str], new: Sequence[str]) -> tuple[Groups, Groups]:
    """Positions by identity. Runs of one origin stay apart only when both sides have equally many of them."""
    old_runs, new_runs = _runs(old), _runs(new)
    apart = {key for key, runs in new_runs.items() if len(old_runs.get(key, ())) == len(runs)}
    return _identified(old_runs, apart), _identified(new_runs, apart)


def _runs(keys: Sequence[str]) -> dict[str, list[list[int]]]:
    runs: dict[str, list[list[int]]] = defaultdict(list)
    last = None
    for at, key in enumerate(keys):
        if key != last:
            runs[key].append([])
        runs[key][-1].append(at)
        last = key
    return runs


def _identified(runs: Mapping[str, list[list[int]]], apart: set[str]) -> Groups:
    found: dict[Identity, list[int]] = {}
    for key, positions in runs.items():
        for run, at in enumerate(positions):
            found.setdefault((key, run if key in apart else 0), []).extend(at)
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


# -- hunks ---------------------------------------------------------------------------------------------------------


def _hunk(
    identity: Identity, old: _Side, new: _Side, before_at: Sequence[int], after_at: Sequence[int]
) -> Hunk:
    rows = _rows(old, new, before_at, after_at)
    kind: HunkKind = "equal" if all(row.equal for row in rows) else "changed"
    if not before_at:
        kind = "added"
    elif not after_at:
        kind = "removed"
    return Hunk(
        kind,
        identity[0],
        tuple(old.ops[at] for at in before_at),
        tuple(new.ops[at] for at in after_at),
        tuple(before_at),
        tuple(after_at),
        tuple(rows),
    )


def _rows(old: _Side, new: _Side, before_at: Sequence[int], after_at: Sequence[int]) -> list[Row]:
    """Equal ops paired in order; between two pairs, what is gone beside what is new."""
    rows: list[Row] = []
    done_before = done_after = 0
    pairs = [*_equal_pairs(old, new, before_at, after_at), (len(before_at), len(after_at))]
    for one, other in pairs:
        gone = [old.ops[at] for at in before_at[done_before:one]]
        came = [new.ops[at] for at in after_at[done_after:other]]
        rows += [Row(old_op, new_op, False) for old_op, new_op in zip_longest(gone, came)]
        if one < len(before_at):
            rows.append(Row(old.ops[before_at[one]], new.ops[after_at[other]], True))
        done_before, done_after = one + 1, other + 1
    return rows


def _equal_pairs(
    old: _Side, new: _Side, before_at: Sequence[int], after_at: Sequence[int]
) -> list[tuple[int, int]]:
    """Pairs of positions within the hunk with equal signatures, increasing on both sides."""
    waiting: dict[Signature, deque[int]] = defaultdict(deque)
    for other, at in enumerate(after_at):
        waiting[new.signatures[at]].append(other)
    pairs: list[tuple[int, int]] = []
    reached = -1
    for one, at in enumerate(before_at):
        queue = waiting.get(old.signatures[at])
        while queue and queue[0] <= reached:
            queue.popleft()
        if queue:
            reached = queue.popleft()
            pairs.append((one, reached))
    return pairs


def _moved(hunks: Sequence[Hunk]) -> set[int]:
    """Hunks outside of the heaviest chain that keeps its order; ops that compute weigh more than all the others."""
    both = [index for index, hunk in enumerate(hunks) if hunk.before]
    starts = sorted(hunks[index].before_at[0] for index in both)
    heavy = len(both) + 1
    best = _PrefixMaximum(len(both))
    previous: dict[int, int] = {}
    for index in both:
        rank = bisect_left(starts, hunks[index].before_at[0])
        weight, last = best.below(rank)
        previous[index] = last
        own = heavy if any(is_computation(op) for op in hunks[index].after) else 1
        best.put(rank, weight + own, index)
    _, index = best.below(len(both))
    kept = set()
    while index >= 0:
        kept.add(index)
        index = previous[index]
    return set(both) - kept


class _PrefixMaximum:
    """A Fenwick tree of (weight, index): the largest at a rank below a bound, in log n."""

    def __init__(self, size: int) -> None:
        self._tree = [(0, -1)] * (size + 1)

    def put(self, rank: int, weight: int, index: int) -> None:
        node = rank + 1
        while node < len(self._tree):
            self._tree[node] = max(self._tree[node], (weight, index))
            node += node & -node

    def below(self, rank: int) -> tuple[int, int]:
        best = (0, -1)
        node = rank
        while node > 0:
            best = max(best, self._tree[node])
            node -= node & -node
        return best


def _as_moved(hunk: Hunk) -> Hunk:
    return Hunk(
        hunk.kind, hunk.key, hunk.before, hunk.after, hunk.before_at, hunk.after_at, hunk.rows, moved=True
    )


def _with_removed(placed: Sequence[Hunk], removed: Sequence[Hunk]) -> Iterator[Hunk]:
    """Each removed hunk behind the hunk of the op that stood before it."""
    owner = {at: index for index, hunk in enumerate(placed) for at in hunk.before_at}
    behind: dict[int, list[Hunk]] = defaultdict(list)
    gone = {hunk.before_at[0]: hunk for hunk in removed}
    total = sum(len(hunk.before) for hunk in (*placed, *removed))
    last = -1
    for at in range(total):
        last = owner.get(at, last)
        if at in gone:
            behind[last].append(gone[at])
    yield from behind[-1]
    for index, hunk in enumerate(placed):
        yield hunk
        yield from behind[index]


# -- lines ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiffLine:
    """A line of the unified view. Lines are 0-based in the two texts; hunk: index in `Diff.hunks`, -1 for a gap."""

    kind: LineKind
    text: str
    before_line: int | None
    after_line: int | None
    hunk: int


@dataclass(frozen=True)
class SideLine:
    """A line of the side-by-side view; None where a side has nothing. kind: equal, moved, changed, added, removed, gap
    (its text is on both sides)."""

    kind: HunkKind | Literal["moved", "gap"]
    before: str | None
    after: str | None
    before_line: int | None
    after_line: int | None
    hunk: int


def unified(difference: Diff, before_text: str, after_text: str, context: int | None = 3) -> list[DiffLine]:
    """One line an op: what is gone, then what came, hunk by hunk.

    Runs of equal ops are cut to `context` ops beside a change and one gap line that counts the rest; None shows all.
    """
    before, after = _op_lines(before_text), _op_lines(after_text)
    lines: list[DiffLine] = []
    for part in _visible(difference, context):
        if isinstance(part, int):
            lines.append(DiffLine("gap", _gap(part), None, None, -1))
        else:
            lines += _unified_rows(difference.hunks[part[0]], part[0], part[1], before, after)
    return lines


def _unified_rows(
    hunk: Hunk, index: int, rows: Sequence[Row], before: Sequence[str], after: Sequence[str]
) -> Iterator[DiffLine]:
    came: list[DiffLine] = []
    for row in rows:
        old, new = row.before, row.after
        if row.equal and old and new:
            yield from came
            came.clear()
            yield DiffLine("moved" if hunk.moved else "equal", after[new.line], old.line, new.line, index)
            continue
        if old:
            yield DiffLine("removed", before[old.line], old.line, None, index)
        if new:
            came.append(DiffLine("added", after[new.line], None, new.line, index))
    yield from came


def side_by_side(
    difference: Diff, before_text: str, after_text: str, context: int | None = 3
) -> list[SideLine]:
    """One line a pair of ops: what an op was on the left, what it became on the right; gaps as in `unified`."""
    before, after = _op_lines(before_text), _op_lines(after_text)
    lines: list[SideLine] = []
    for part in _visible(difference, context):
        if isinstance(part, int):
            lines.append(SideLine("gap", _gap(part), _gap(part), None, None, -1))
            continue
        index, rows = part
        lines += [_side_line(row, difference.hunks[index], index, before, after) for row in rows]
    return lines


def _side_line(row: Row, hunk: Hunk, index: int, before: Sequence[str], after: Sequence[str]) -> SideLine:
    old, new = row.before, row.after
    kind: HunkKind | Literal["moved"]
    if row.equal:
        kind = "moved" if hunk.moved else "equal"
    elif old and new:
        kind = "changed"
    else:
        kind = "removed" if old else "added"
    return SideLine(
        kind,
        before[old.line] if old else None,
        after[new.line] if new else None,
        old.line if old else None,
        new.line if new else None,
        index,
    )


def _visible(difference: Diff, context: int | None) -> Iterator[int | tuple[int, tuple[Row, ...]]]:
    """(hunk, rows to show), or the number of equal ops left out, in order."""
    rows = [
        (index, row, row.equal and not hunk.moved)
        for index, hunk in enumerate(difference.hunks)
        for row in hunk.rows
    ]
    shown = _near_changes([quiet for _, _, quiet in rows], context)
    hidden = 0
    pending: list[Row] = []
    owner = -1
    for (index, row, _), show in zip(rows, shown, strict=True):
        if pending and (index != owner or not show):
            yield owner, tuple(pending)
            pending = []
        if show:
            if hidden:
                yield hidden
                hidden = 0
            pending.append(row)
            owner = index
        else:
            hidden += 1
    if pending:
        yield owner, tuple(pending)
    if hidden:
        yield hidden


def _near_changes(quiet: Sequence[bool], context: int | None) -> list[bool]:
    """Which rows lie within `context` rows of a change; a gap of a single row is shown instead."""
    if context is None:
        return [True] * len(quiet)
    shown = [not is_quiet for is_quiet in quiet]
    for step in (1, -1):
        distance = context + 1
        for at in range(len(quiet))[::step]:
            distance = 0 if not quiet[at] else distance + 1
            shown[at] = shown[at] or distance <= context
    for at in range(1, len(shown) - 1):
        if not shown[at] and shown[at - 1] and shown[at + 1]:
            shown[at] = True
    return shown


def _gap(count: int) -> str:
    return f"⋮ {count} equal op{'s' if count != 1 else ''}"


def _op_lines(text: str) -> list[str]:
    """Lines without indentation and without the trailing location alias, which says nothing to a reader."""
    return [_without_location(line.strip()) for line in text.splitlines()]


def _without_location(line: str) -> str:
    return line.rpartition(" loc(#")[0] if line.endswith(")") and " loc(#" in line else line
