"""The error tree: each class is also the builtin a Python user would catch.

Every class has a `kind` that never changes its meaning, and every instance may
carry a `hint` that says what to do about it. All are picklable.
"""

from typing import ClassVar, Final

__all__ = [
    "BY_KIND",
    "AccessDeniedError",
    "AlreadyExistsError",
    "ClosedError",
    "CorruptError",
    "EncoderError",
    "InvalidError",
    "InvalidTypeError",
    "LockedError",
    "MaskError",
    "MissingExtraError",
    "NoValueError",
    "NotFoundError",
    "OutOfRangeError",
    "OverloadError",
    "ReliveError",
    "StorageError",
    "TooLargeError",
    "UnfinishedError",
    "UnknownFieldError",
    "UnknownKindError",
    "UnknownNameError",
    "UnsupportedError",
    "WorkerError",
]


class ReliveError(Exception):
    """Anything that relive raises on purpose."""

    kind: ClassVar[str] = "error"

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Give the message, and the hint on a line of its own when there is one."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the class, the message, the hint and whatever else was set on the instance."""
        return _restore, (type(self), self.message, self.hint), self.__dict__.copy()


def _restore(cls: type[ReliveError], message: str, hint: str | None) -> ReliveError:
    # The root's __init__ on purpose: a subclass may take other arguments than these two.
    error = cls.__new__(cls)
    ReliveError.__init__(error, message, hint=hint)
    return error


class InvalidError(ReliveError, ValueError):
    """An argument has the right type and a wrong value."""

    kind = "invalid"


class InvalidTypeError(ReliveError, TypeError):
    """An argument has the wrong type."""

    kind = "invalid-type"


class MaskError(ReliveError, TypeError, IndexError):
    """Booleans were given where only positions or times select."""

    kind = "mask"


class OutOfRangeError(ReliveError, IndexError):
    """A position is outside of what it points into."""

    kind = "out-of-range"


class UnknownFieldError(ReliveError, KeyError):
    """No field has that name."""

    kind = "unknown-field"


class UnknownKindError(ReliveError, KeyError):
    """No kind of payload has that name, or nobody registered how to decode it."""

    kind = "unknown-kind"


class UnknownNameError(ReliveError, KeyError):
    """No entry has that name."""

    kind = "unknown-name"


class NoValueError(ReliveError, KeyError):
    """A signal has no value at that time: its first record comes later, or there is none."""

    kind = "no-value"


class ClosedError(ReliveError, RuntimeError):
    """The thing was closed or aborted, or belongs to another process."""

    kind = "closed"


class LockedError(ReliveError, BlockingIOError):
    """Another process is writing to it."""

    kind = "locked"


class UnfinishedError(ReliveError, ValueError):
    """It is still being written, or its writer died before it was finished."""

    kind = "unfinished"


class OverloadError(ReliveError, RuntimeError):
    """Records come faster than they can be taken, and were asked not to wait."""

    kind = "overload"


class EncoderError(ReliveError, RuntimeError):
    """A video encoder is not there, refused its options, or failed."""

    kind = "encoder"


class CorruptError(ReliveError, ValueError):
    """Stored bytes are not what their format or checksum promises."""

    kind = "corrupt"


class UnsupportedError(ReliveError, ValueError):
    """The request is meaningful, and this version cannot do it."""

    kind = "unsupported"


class TooLargeError(ReliveError, ValueError):
    """A size is beyond the limit that was set for it."""

    kind = "too-large"


class NotFoundError(ReliveError, FileNotFoundError):
    """Nothing is there."""

    kind = "not-found"


class AlreadyExistsError(ReliveError, FileExistsError):
    """Something is there already, and nobody asked to overwrite it."""

    kind = "already-exists"


class AccessDeniedError(ReliveError, PermissionError):
    """The store refused us."""

    kind = "access-denied"


class StorageError(ReliveError, OSError):
    """The operating system or the object store failed."""

    kind = "io"


class MissingExtraError(ReliveError, ImportError):
    """An optional dependency is needed and not installed."""

    kind = "missing-extra"


class WorkerError(ReliveError, RuntimeError):
    """A helper process died."""

    kind = "worker"


BY_KIND: Final[dict[str, type[ReliveError]]] = {
    cls.kind: cls
    for cls in (
        InvalidError,
        InvalidTypeError,
        MaskError,
        OutOfRangeError,
        UnknownFieldError,
        UnknownKindError,
        UnknownNameError,
        NoValueError,
        ClosedError,
        LockedError,
        UnfinishedError,
        OverloadError,
        EncoderError,
        CorruptError,
        UnsupportedError,
        TooLargeError,
        NotFoundError,
        AlreadyExistsError,
        AccessDeniedError,
        StorageError,
        MissingExtraError,
        WorkerError,
    )
}
"""The class of each kind; a kind that Rust reports becomes the class found here."""
