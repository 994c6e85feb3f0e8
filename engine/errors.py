"""Errors that are the user's to mend, as opposed to bugs: each says what was found, what is accepted and what to do."""

from __future__ import annotations


class UserError(Exception):
    """Bad input. The command line prints its text and exits with 2; the explorer shows it in place."""


class CompileError(Exception):
    """A module could not be compiled. Carries the module, the pass and where the IR before the pass was saved."""

    def __init__(self, message: str, module: str = "", pass_name: str = "", saved_ir: str = "") -> None:
        super().__init__(message)
        self.module = module
        self.pass_name = pass_name
        self.saved_ir = saved_ir

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str, str, str]]:
        return type(self), (str(self), self.module, self.pass_name, self.saved_ir)


class VerifyError(Exception):
    """An op is malformed; the message says why, the caller adds which op and where."""
