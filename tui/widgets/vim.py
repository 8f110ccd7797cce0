"""An editor with common vim keys: a normal mode for moving and editing, and an insert mode for typing."""

from __future__ import annotations

from textual import events
from textual.reactive import reactive
from textual.widgets import TextArea

NORMAL_COMMANDS = {
    "h": "cursor_left", "j": "cursor_down", "k": "cursor_up", "l": "cursor_right",
    "w": "cursor_word_right", "b": "cursor_word_left", "0": "cursor_line_start", "$": "cursor_line_end",
    "gg": "text_start", "G": "text_end", "x": "delete_right", "X": "delete_left", "dd": "cut",
    "dw": "delete_word_right", "db": "delete_word_left", "D": "delete_to_end_of_line", "d0": "delete_to_start_of_line",
    "p": "put", "u": "undo", "U": "redo",
}  # fmt: skip
"""Keys of the normal mode → the TextArea's action."""
INSERT_COMMANDS = {
    "i": "", "a": "cursor_right", "I": "cursor_line_start", "A": "cursor_line_end", "o": "open_below",
    "O": "open_above", "C": "delete_to_end_of_line", "cw": "delete_word_right", "s": "delete_right",
}  # fmt: skip
"""Keys that lead back to typing → the action before that."""


class VimEditor(TextArea):
    """An editor with optional vim keys (`vim`): Esc enters normal mode, and a key in INSERTS leaves it."""

    DEFAULT_CSS = """
    VimEditor.-vim, VimEditor.-vim:focus { border-bottom: solid $panel; }
    VimEditor { border-subtitle-color: $text-muted; }
    VimEditor.-normal { border-subtitle-color: $text-accent; }
    """

    vim: reactive[bool] = reactive(False)
    normal: reactive[bool] = reactive(False)
    _begun_keys = ""

    def watch_vim(self) -> None:
        self.normal = False
        self.show_mode()

    def watch_normal(self) -> None:
        self._begun_keys = ""
        self.show_mode()

    def show_mode(self) -> None:
        self.set_class(self.vim, "-vim")
        self.set_class(self.normal, "-normal")
        self.border_subtitle = (
            (f"normal {self._begun_keys}".rstrip() if self.normal else "insert") if self.vim else None
        )

    async def on_key(self, event: events.Key) -> None:
        if self.normal and (event.is_printable or event.key in ("enter", "backspace")):
            event.stop()
            event.prevent_default()
            await self.type_command(
                {"enter": "j", "backspace": "h", "space": "l"}.get(event.key, event.character or "")
            )

    async def type_command(self, key: str) -> None:
        """Run the command that `key` completes, or keep `key` as the beginning of one."""
        keys = self._begun_keys + key
        commands = NORMAL_COMMANDS | INSERT_COMMANDS
        self._begun_keys = keys if keys not in commands and any(name.startswith(keys) for name in commands) else ""
        if name := commands.get(keys):
            await self.run_action(name)
            self.history.checkpoint()
        self.normal = keys not in INSERT_COMMANDS
        self.show_mode()

    def action_text_start(self) -> None:
        self.move_cursor(self.document.start)

    def action_text_end(self) -> None:
        self.move_cursor((self.document.line_count - 1, 0))

    def action_put(self) -> None:
        """Paste at the cursor. Whole lines, as copied by `dd`, are pasted above the cursor's line."""
        if self.app.clipboard.endswith("\n"):
            self.action_cursor_line_start()
        self.action_paste()

    def action_open_below(self) -> None:
        self.action_cursor_line_end()
        self.insert("\n")

    def action_open_above(self) -> None:
        self.action_cursor_line_start()
        self.insert("\n", maintain_selection_offset=False)
        self.action_cursor_up()
