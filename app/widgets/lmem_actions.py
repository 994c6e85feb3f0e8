"""Keys of the local-memory panels, in the form of the action registry."""

from __future__ import annotations

from textual.binding import Binding

from app.actions import Action

LMEM_ACTIONS: tuple[Action, ...] = (
    # the map
    Action("lmem-map", "go_step(1)", ("right", "l"), "buffer", "Next time step", "←→↑↓"),
    Action("lmem-map", "go_step(-1)", ("left", "h"), "", "Previous time step"),
    Action("lmem-map", "go_buffer(1)", ("down", "j"), "", "Next buffer by address that is live in this step"),
    Action("lmem-map", "go_buffer(-1)", ("up", "k"), "", "Previous buffer by address"),
    Action("lmem-map", "go_step(-1000)", ("home",), "", "First time step"),
    Action("lmem-map", "go_step(1000)", ("end",), "", "Last time step"),
    Action("lmem-map", "page(1)", ("pagedown",), "", "Next bank, or further down"),
    Action("lmem-map", "page(-1)", ("pageup",), "", "Previous bank, or further up"),
    Action("lmem-map", "search", ("slash",), "search", "Search a buffer by name or value"),
    Action("lmem-map", "search_next(1)", ("n",), "", "Next match"),
    Action("lmem-map", "search_next(-1)", ("N",), "", "Previous match"),
    Action("lmem-map", "go_to", ("colon",), "", "Go to a buffer (%12) or a time step (3)"),
    Action("lmem-map", "copy", ("y",), "", "Copy what is known about the buffer"),
    Action("lmem-map", "maximise", ("z",), "", "Maximise the map or put it back"),
    Action("lmem-map", "choose", ("enter",), "", "Show the op of the buffer in the IR"),
    # the lanes
    Action("lmem-lanes", "go_step(1)", ("right", "l"), "step", "Next time step", "← →"),
    Action("lmem-lanes", "go_step(-1)", ("left", "h"), "", "Previous time step"),
    Action("lmem-lanes", "go_step(-1000)", ("home",), "", "First time step"),
    Action("lmem-lanes", "go_step(1000)", ("end",), "", "Last time step"),
    Action("lmem-lanes", "scroll_lines(1)", ("down", "j"), "", "Further down"),
    Action("lmem-lanes", "scroll_lines(-1)", ("up", "k"), "", "Further up"),
    Action("lmem-lanes", "maximise", ("z",), "", "Maximise the lanes or put them back"),
    # all panels about a group
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
    Action("lmem", "op_in_ir", ("o",), "op in IR", "Show the op of the buffer in the IR"),
)


def lmem_bindings(scope: str) -> list[Binding | tuple[str, str] | tuple[str, str, str]]:
    """Textual bindings of one scope."""
    return [
        Binding(",".join(action.keys), action.name, action.label or action.about, show=False)
        for action in LMEM_ACTIONS
        if action.scope == scope
    ]
