"""Every error Kinetic raises on purpose.

    KineticError                 base; its text is one sentence: what, where, what to do
    ├── UsageError               the command line or call is wrong           (exit 2)
    ├── ModelFileError           a file is damaged, truncated or not GGUF    (exit 1)
    ├── UnsupportedError         a well-formed model needs something missing (exit 1)
    ├── ContextError             a request does not fit the context or the memory
    ├── QueueFull                too many requests are waiting already
    ├── NetworkError             a hub cannot be reached, or refuses          (exit 1)
    ├── TemplateError            a chat template refused the conversation
    └── InternalError            a bug in Kinetic; names the pass or the op

User errors leave the command line without a traceback; InternalError keeps it.
"""

from __future__ import annotations


class KineticError(Exception):
    """An error whose text can be shown to a user as it is."""

    exit_code = 1


class UsageError(KineticError):
    """The call or command line cannot be understood."""

    exit_code = 2


class ModelFileError(KineticError):
    """A file's bytes are not what its format says they must be."""


class UnsupportedError(KineticError):
    """The file is fine, but needs an architecture, format or option that Kinetic lacks."""


class ContextError(KineticError):
    """A request does not fit the context length or the memory."""


class NetworkError(KineticError):
    """A hub cannot be reached, refuses, or sends what it should not."""


class QueueFull(KineticError):
    """So many requests are waiting that one more is turned away; it may be sent again."""


class TemplateError(KineticError):
    """A chat template raised, or is not valid Jinja."""


class InternalError(KineticError):
    """Kinetic broke one of its own rules; please report it."""
