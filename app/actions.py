"""The one list of actions: it feeds the key bindings, the footer, the palette and the help.

A scope is where an action works: `app` everywhere, a screen's name on that screen, a panel's name while it has the
focus. The method that runs it is `action_<name>` of the widget, screen or app that owns the scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from textual.binding import Binding, BindingType


@dataclass(frozen=True)
class Action:
    """One thing that a user can do.

    name: method without `action_`. keys: as Textual names them, the first is shown. label: word in the footer, "" to
    leave it out. about: sentence in palette and help. shown: how the footer writes the keys.
    """

    scope: str
    name: str
    keys: tuple[str, ...]
    label: str
    about: str
    shown: str = ""

    @property
    def keys_shown(self) -> str:
        """The keys as people read them."""
        return self.shown or " ".join(pretty(key) for key in self.keys[:2])

    @property
    def all_keys(self) -> str:
        """Every key, as people read them."""
        return " ".join(pretty(key) for key in self.keys)


_NAMES = {
    "equals_sign": "=",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "question_mark": "?",
    "slash": "/",
    "colon": ":",
    "plus": "+",
    "minus": "-",
    "comma": ",",
    "full_stop": ".",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "escape": "esc",
    "enter": "enter",
}


def pretty(key: str) -> str:
    """A Textual key name as it stands on a keyboard (`left_square_bracket` is `[`)."""
    if key.startswith("ctrl+"):
        return f"^{key[5:]}"
    return _NAMES.get(key, key)


SCREENS = ("explore", "memory", "simulate", "kv", "run")
"""The screens in the order of their number keys."""

SCREEN_TITLES = {"explore": "explore", "memory": "memory", "simulate": "simulate", "kv": "KV", "run": "run"}

SCREEN_SHORT = {"explore": "expl", "memory": "mem", "simulate": "sim", "kv": "KV", "run": "run"}
"""Their names where the footer is short of space."""

ALWAYS = ("help", "quit")
"""Labels of what the footer names however narrow it is."""

ACTIONS: tuple[Action, ...] = (
    # everywhere
    Action("app", "show_screen('explore')", ("1",), "", "Modules, passes, IR and diff"),
    Action("app", "show_screen('memory')", ("2",), "", "DDR arenas and lifetimes of the module"),
    Action("app", "show_screen('simulate')", ("3",), "", "Cycles, DDR traffic, tokens per second"),
    Action("app", "show_screen('kv')", ("4",), "", "KV cache by layer, append slots, checks"),
    Action("app", "show_screen('run')", ("5",), "", "Generate text with the compiled program"),
    Action("app", "open_model", ("0",), "open", "Open another model or change its options"),
    Action("app", "help", ("question_mark",), "help", "Help for the focused panel"),
    Action("app", "command_palette", ("ctrl+p",), "palette", "Every action, by name"),
    Action("app", "export", ("e",), "export", "Write IR, tables, graphs, traces or this screen to a file"),
    Action("app", "jump", ("J", "ctrl+o"), "", "Jump to a panel by its letter"),
    Action("app", "cancel", ("ctrl+x",), "", "Cancel the compilation that is running"),
    Action("app", "compile", ("R",), "", "Go on with a compilation that was cancelled: what is missing"),
    Action("app", "next_theme", ("ctrl+t",), "", "Next theme: dark, light, ANSI"),
    Action("app", "screenshot_svg", ("ctrl+s",), "", "Save this screen as an SVG picture"),
    Action("app", "quit", ("q",), "quit", "Quit"),
    # every screen with a module
    Action("module", "module(1)", ("right_curly_bracket",), "module", "Next module", "{ }"),
    Action("module", "module(-1)", ("left_curly_bracket",), "", "Previous module"),
    Action(
        "module", "layer(1)", ("full_stop", "greater_than_sign"), "layer", "Next layer of the module", "< >"
    ),
    Action("module", "layer(-1)", ("comma", "less_than_sign"), "", "Previous layer of the module"),
    # explore
    Action("explore", "step(1)", ("right_square_bracket",), "pass", "Next pass", "[ ]"),
    Action("explore", "step(-1)", ("left_square_bracket",), "", "Previous pass"),
    Action("explore", "diff", ("d",), "diff", "Diff against the pass before, on or off"),
    Action("explore", "side_by_side", ("D",), "side by side", "Diff side by side or unified"),
    Action("explore", "context(1)", ("plus", "equals_sign"), "", "More equal ops around each change"),
    Action("explore", "context(-1)", ("minus",), "", "Fewer equal ops around each change"),
    Action("explore", "changed_only", ("c",), "changed", "List only the passes that changed something"),
    Action("explore", "weights", ("w",), "weights", "Show or leave out weights and inputs"),
    Action("explore", "mark", ("m",), "", "Start the diff at this pass, or again at the one before"),
    Action("explore", "raw", ("r",), "raw", "Exact MLIR text, or the folded reading form"),
    Action("explore", "origin", ("o",), "origin", "Follow the op back to where it came from"),
    Action("explore", "became", ("O",), "", "Follow the op forward to what it became"),
    Action("explore", "back", ("backspace",), "", "Back to where the last jump started"),
    # module tree
    Action("tree", "fold_or_unfold", ("space",), "fold", "Fold or unfold what is below a stage or a block"),
    Action("tree", "unfold", ("right", "l"), "", "Unfold, or go to the first row below"),
    Action("tree", "fold", ("left", "h"), "", "Fold, or go up to the row that holds this one"),
    # lists and text
    Action("list", "cursor_down", ("down", "j"), "", "Next row"),
    Action("list", "cursor_up", ("up", "k"), "", "Previous row"),
    Action("list", "scroll_sideways(8)", ("right", "l"), "", "Scroll right"),
    Action("list", "scroll_sideways(-8)", ("left", "h"), "", "Scroll left"),
    Action("list", "first", ("g", "home"), "", "First row"),
    Action("list", "last", ("G", "end"), "", "Last row"),
    Action("list", "page(1)", ("pagedown",), "", "One page down"),
    Action("list", "page(-1)", ("pageup",), "", "One page up"),
    Action("list", "half_page(1)", ("ctrl+d",), "", "Half a page down"),
    Action("list", "half_page(-1)", ("ctrl+u",), "", "Half a page up"),
    Action("list", "choose", ("enter",), "", "Open what the cursor is on"),
    Action("list", "search", ("slash",), "search", "Search in the focused panel"),
    Action("list", "search_next(1)", ("n",), "", "Next match"),
    Action("list", "search_next(-1)", ("N",), "", "Previous match"),
    Action("list", "go_to", ("colon",), "", "Go to a line, a value (%12) or an op"),
    Action("list", "copy", ("y",), "copy", "Copy the row to the clipboard"),
    Action("list", "maximise", ("z",), "zoom", "Maximise the panel or put it back"),
    # memory
    Action(
        "memory", "time_axis", ("t",), "DDR map", "DDR as a table by address, or lifetimes over the program"
    ),
    Action(
        "memory",
        "local_memory",
        ("m",),
        "DDR/local",
        "DDR of the module, or local memory of its layer groups",
    ),
    Action("memory", "arena", ("a",), "arena", "Show all arenas or one"),
    Action("memory", "program", ("w",), "program", "DDR of the whole program, or of the module"),
    # map of local memory
    Action("lmem-map", "go_step(1)", ("right", "l"), "buffer", "Next time step", "←→↑↓"),
    Action("lmem-map", "go_step(-1)", ("left", "h"), "", "Previous time step"),
    Action("lmem-map", "go_buffer(1)", ("down", "j"), "", "Next buffer by address that is live in this step"),
    Action("lmem-map", "go_buffer(-1)", ("up", "k"), "", "Previous buffer by address"),
    Action("lmem-map", "go_step(-1000)", ("home",), "", "First time step"),
    Action("lmem-map", "go_step(1000)", ("end",), "", "Last time step"),
    Action("lmem-map", "page(1)", ("pagedown",), "", "Next bank, or further down"),
    Action("lmem-map", "page(-1)", ("pageup",), "", "Previous bank, or further up"),
    Action("lmem-map", "search", ("slash",), "", "Search a buffer by name or value"),
    Action("lmem-map", "search_next(1)", ("n",), "", "Next match"),
    Action("lmem-map", "search_next(-1)", ("N",), "", "Previous match"),
    Action("lmem-map", "go_to", ("colon",), "", "Go to a buffer (%12) or a time step (3)"),
    Action("lmem-map", "copy", ("y",), "", "Copy what is known about the buffer"),
    Action("lmem-map", "maximise", ("z",), "", "Maximise the map or put it back"),
    Action("lmem-map", "choose", ("enter",), "", "Show the op of the buffer in the IR"),
    # lanes of time steps
    Action("lmem-lanes", "go_step(1)", ("right", "l"), "step", "Next time step", "← →"),
    Action("lmem-lanes", "go_step(-1)", ("left", "h"), "", "Previous time step"),
    Action("lmem-lanes", "go_step(-1000)", ("home",), "", "First time step"),
    Action("lmem-lanes", "go_step(1000)", ("end",), "", "Last time step"),
    Action("lmem-lanes", "scroll_lines(1)", ("down", "j"), "", "Further down"),
    Action("lmem-lanes", "scroll_lines(-1)", ("up", "k"), "", "Further up"),
    Action("lmem-lanes", "maximise", ("z",), "", "Maximise the lanes or put them back"),
    # every panel about a layer group
    Action("lmem", "next_group(1)", ("g",), "group", "Next layer group", "g G"),
    Action("lmem", "next_group(-1)", ("G",), "", "Previous layer group"),
    Action(
        "lmem", "slice(1)", ("greater_than_sign",), "slice", "Next step of the pipeline over slices", "< >"
    ),
    Action("lmem", "slice(-1)", ("less_than_sign",), "", "Previous step of the pipeline over slices"),
    Action("lmem", "zoom(1)", ("plus", "equals_sign"), "scale", "Closer: banks in use, then one bank", "+ -"),
    Action("lmem", "zoom(-1)", ("minus",), "", "Further away: the whole local memory to scale"),
    Action(
        "lmem", "why", ("x",), "why?", "Why this group is as it is: what was tried and what it would cost"
    ),
    Action("lmem", "group_list", ("L",), "groups", "The module's groups"),
    Action("lmem", "core(1)", ("C",), "core", "Next core: its slices of the group"),
    Action("lmem", "op_in_ir", ("o",), "op in IR", "Show the op of the buffer in the IR"),
    # simulate
    Action("simulate", "stage(1)", ("right_square_bracket",), "stage", "Next stage", "[ ]"),
    Action("simulate", "stage(-1)", ("left_square_bracket",), "", "Previous stage"),
    Action("simulate", "sort", ("s",), "sort", "Sort by cycles, bytes read, bytes written or program order"),
    Action("simulate", "variant", ("v",), "variant", "Next decode variant (a shorter cache)"),
    Action("simulate", "filter", ("f",), "filter", "Keep the ops that have a text in their name or location"),
    Action(
        "simulate",
        "timeline",
        ("t",),
        "timeline",
        "The two engines over the cycles of the op's module, or back",
    ),
    Action("simulate", "curve", ("c",), "curve", "Speed curve in place of the op's details"),
    Action("simulate", "in_ir", ("o",), "op in IR", "Show the op in the explorer"),
    Action("simulate", "lengths", ("p",), "lengths", "Set the prompt length and the tokens to generate"),
    # timeline
    Action("timeline", "go(1)", ("right", "l"), "instruction", "Next instruction of the engine", "← →"),
    Action("timeline", "go(-1)", ("left", "h"), "", "Previous instruction of the engine"),
    Action("timeline", "go_op(1)", ("shift+right", "L"), "op", "Next op of the engine", "H L"),
    Action("timeline", "go_op(-1)", ("shift+left", "H"), "", "Previous op of the engine"),
    Action(
        "timeline", "go_lane(1)", ("down", "j"), "engine", "The engine or core below, at the same time", "↑ ↓"
    ),
    Action("timeline", "go_lane(-1)", ("up", "k"), "", "The engine or core above, at the same time"),
    Action("timeline", "zoom(1)", ("plus",), "zoom", "Closer around the cursor", "+ - ="),
    Action("timeline", "zoom(-1)", ("minus",), "", "Further away"),
    Action("timeline", "fit", ("equals_sign",), "", "The whole module"),
    Action("timeline", "fit_op", ("x",), "fit op", "As close as the op is long"),
    Action(
        "timeline", "waited_for", ("w",), "waited for", "The instruction of the other engine that it needs"
    ),
    Action("timeline", "longest_wait", ("b",), "bubble", "The longest wait that comes later in the lane"),
    Action("timeline", "first", ("g", "home"), "", "First instruction of the engine"),
    Action("timeline", "last", ("G", "end"), "", "Last instruction of the engine"),
    Action("timeline", "page(1)", ("pagedown",), "", "One window later"),
    Action("timeline", "page(-1)", ("pageup",), "", "One window earlier"),
    Action("timeline", "page(0.5)", ("ctrl+d",), "", "Half a window later"),
    Action("timeline", "page(-0.5)", ("ctrl+u",), "", "Half a window earlier"),
    Action("timeline", "choose", ("enter",), "", "Show the op in the explorer"),
    Action("timeline", "search", ("slash",), "search", "Search an op or a tensor by name"),
    Action("timeline", "search_next(1)", ("n",), "", "Next match"),
    Action("timeline", "search_next(-1)", ("N",), "", "Previous match"),
    Action("timeline", "go_to", ("colon",), "", "Go to a cycle (352k), or an op"),
    Action("timeline", "copy", ("y",), "", "Copy what is known about the instruction"),
    Action("timeline", "maximise", ("z",), "", "Maximise the timeline or put it back"),
    # run
    Action("run", "prompt", ("i",), "prompt", "Write a prompt"),
    Action("run", "stop", ("ctrl+x",), "stop", "Stop generating"),
)


def bindings(*scopes: str) -> list[BindingType]:
    """Textual bindings of all actions of the scopes."""
    return [
        Binding(",".join(action.keys), action.name, action.label or action.about, show=False)
        for action in ACTIONS
        if action.scope in scopes
    ]


def of_scopes(scopes: Iterable[str]) -> list[Action]:
    """The actions of the scopes, in the order of the scopes."""
    return [action for scope in scopes for action in ACTIONS if action.scope == scope]


def footer(scopes: Sequence[str], labels: Sequence[str] | None = None) -> list[Action]:
    """The actions that the footer names, in the order of the scopes; `labels`: only these."""
    return [a for a in of_scopes(scopes) if a.label and (labels is None or a.label in labels)]
