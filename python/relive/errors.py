"""The error tree. Each class also inherits from the builtin that a Python user would catch.

Every class has a `kind`, a stable name, and every instance may have a `hint` that tells what to
do. All are picklable.
"""

from typing import ClassVar, Final

__all__ = [
    "BY_KIND",
    "AccessDeniedError",
    "AlreadyExistsError",
    "AuthenticationError",
    "ClosedError",
    "ConflictError",
    "CorruptError",
    "DatasetNotFoundError",
    "EncoderError",
    "InvalidError",
    "InvalidTypeError",
    "LockedError",
    "ManifestCorruptedError",
    "MaskError",
    "MemberNotFoundError",
    "MissingExtraError",
    "NameTakenError",
    "NoValueError",
    "NotCachedError",
    "NotFoundError",
    "OfflineError",
    "OutOfRangeError",
    "OverloadError",
    "ReadOnlyError",
    "ReliveError",
    "SchemaError",
    "StorageError",
    "TooLargeError",
    "UnfinishedError",
    "UnknownFieldError",
    "UnknownKindError",
    "UnknownNameError",
    "UnsupportedError",
    "VersionWithdrawnError",
    "WorkerError",
]


class ReliveError(Exception):
    """The parent of all errors that relive raises.

    Example:
        >>> import relive
        >>> try:
        ...     relive.PackReader.open("no.pack")
        ... except FileNotFoundError as error:
        ...     print(error.kind)
        not-found
    """

    kind: ClassVar[str] = "error"

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message, and the hint on its own line if there is one."""
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the class, the message, the hint and all other attributes of the instance."""
        return _restore, (type(self), self.message, self.hint), self.__dict__.copy()


def _restore(cls: type[ReliveError], message: str, hint: str | None) -> ReliveError:
    # The __init__ of the root, because a subclass may take other arguments.
    error = cls.__new__(cls)
    ReliveError.__init__(error, message, hint=hint)
    return error


class InvalidError(ReliveError, ValueError):
    """An argument has the right type but a wrong value."""

    kind = "invalid"


class NameTakenError(InvalidError):
    """Another entry of the pack already has that name."""

    kind = "name-taken"


class SchemaError(InvalidError):
    """Data does not have the schema of its table."""

    kind = "schema"


class InvalidTypeError(ReliveError, TypeError):
    """An argument has the wrong type."""

    kind = "invalid-type"


class MaskError(ReliveError, TypeError, IndexError):
    """A mask was passed where only positions or times select."""

    kind = "mask"


class OutOfRangeError(ReliveError, IndexError):
    """A position is out of range."""

    kind = "out-of-range"


class UnknownFieldError(ReliveError, KeyError):
    """No field has that name."""

    kind = "unknown-field"


class UnknownKindError(ReliveError, KeyError):
    """No kind of payload has that name, or the kind is not registered."""

    kind = "unknown-kind"


class UnknownNameError(ReliveError, KeyError):
    """No entry has that name."""

    kind = "unknown-name"


class MemberNotFoundError(UnknownNameError):
    """No member of the artifact has that name."""

    kind = "member-not-found"


class NoValueError(ReliveError, KeyError):
    """A signal has no value at that time: its first record is later, or it is empty."""

    kind = "no-value"


class ClosedError(ReliveError, RuntimeError):
    """The reader or writer was closed or aborted, or belongs to another process."""

    kind = "closed"


class LockedError(ReliveError, BlockingIOError):
    """Another process is writing to it."""

    kind = "locked"


class UnfinishedError(ReliveError, ValueError):
    """It is still being written, or its writer ended before it was finished."""

    kind = "unfinished"


class OverloadError(ReliveError, RuntimeError):
    """Records are appended faster than they are written, and the writer may not wait."""

    kind = "overload"


class EncoderError(ReliveError, RuntimeError):
    """A video encoder is missing, refused its options, or failed."""

    kind = "encoder"


class CorruptError(ReliveError, ValueError):
    """Stored bytes do not match their format or checksum."""

    kind = "corrupt"


class ManifestCorruptedError(CorruptError):
    """A manifest or pointer is not valid, or does not match its digest."""

    kind = "manifest-corrupted"


class UnsupportedError(ReliveError, ValueError):
    """The request is valid, but this version does not support it."""

    kind = "unsupported"


class TooLargeError(ReliveError, ValueError):
    """A size exceeds its limit."""

    kind = "too-large"


class NotFoundError(ReliveError, FileNotFoundError):
    """The file, directory or object does not exist."""

    kind = "not-found"


class DatasetNotFoundError(NotFoundError):
    """The root has no dataset, version or tag of that name."""

    kind = "dataset-not-found"


class NotCachedError(NotFoundError):
    """It is not available locally, and only local data may be used."""

    kind = "not-cached"


class VersionWithdrawnError(NotFoundError):
    """The version was withdrawn by its publisher."""

    kind = "version-withdrawn"


class AlreadyExistsError(ReliveError, FileExistsError):
    """The target already exists, and `overwrite` was not requested."""

    kind = "already-exists"


class ConflictError(ReliveError, RuntimeError):
    """Another writer changed the object since it was read.

    After a publish, `digest` is the version that was published and `current` the version that the
    pointer names now; the version exists, but the pointer did not move. None where unknown.
    """

    kind = "conflict"

    def __init__(
        self,
        message: str = "",
        *,
        digest: str | None = None,
        current: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.digest = digest
        self.current = current


class AccessDeniedError(ReliveError, PermissionError):
    """The file system or the object store denied access."""

    kind = "access-denied"


class AuthenticationError(AccessDeniedError):
    """The store rejected the credentials, or there are none."""

    kind = "authentication"


class ReadOnlyError(ReliveError, PermissionError):
    """Something cannot be changed: an archived run, for example."""

    kind = "read-only"


class StorageError(ReliveError, OSError):
    """The operating system or the object store failed."""

    kind = "io"


class OfflineError(StorageError, ConnectionError):
    """The server cannot be reached."""

    kind = "offline"


class MissingExtraError(ReliveError, ImportError):
    """An optional dependency is needed but not installed."""

    kind = "missing-extra"


class WorkerError(ReliveError, RuntimeError):
    """A helper process ended unexpectedly."""

    kind = "worker"


BY_KIND: Final[dict[str, type[ReliveError]]] = {
    cls.kind: cls
    for cls in (
        InvalidError,
        NameTakenError,
        SchemaError,
        InvalidTypeError,
        MaskError,
        OutOfRangeError,
        UnknownFieldError,
        UnknownKindError,
        UnknownNameError,
        MemberNotFoundError,
        NoValueError,
        ClosedError,
        LockedError,
        UnfinishedError,
        OverloadError,
        EncoderError,
        CorruptError,
        ManifestCorruptedError,
        UnsupportedError,
        TooLargeError,
        NotFoundError,
        DatasetNotFoundError,
        NotCachedError,
        VersionWithdrawnError,
        AlreadyExistsError,
        ConflictError,
        AccessDeniedError,
        AuthenticationError,
        ReadOnlyError,
        StorageError,
        OfflineError,
        MissingExtraError,
        WorkerError,
    )
}
"""The class of each kind; errors of the Rust core are raised as these classes."""
