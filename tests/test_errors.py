"""The error tree: builtin base classes, stable kinds, hints and pickling."""

import copy
import pickle
import traceback

import pytest

from relive import errors
from relive.errors import BY_KIND, ReliveError

PARENTS: dict[str, type[Exception] | tuple[type[Exception], ...]] = {
    "invalid": ValueError,
    "name-taken": ValueError,
    "schema": ValueError,
    "invalid-type": TypeError,
    "mask": (TypeError, IndexError),
    "out-of-range": IndexError,
    "unknown-field": KeyError,
    "unknown-kind": KeyError,
    "unknown-name": KeyError,
    "member-not-found": KeyError,
    "no-value": KeyError,
    "closed": RuntimeError,
    "locked": BlockingIOError,
    "unfinished": ValueError,
    "overload": RuntimeError,
    "encoder": RuntimeError,
    "corrupt": ValueError,
    "manifest-corrupted": ValueError,
    "unsupported": ValueError,
    "too-large": ValueError,
    "not-found": FileNotFoundError,
    "dataset-not-found": FileNotFoundError,
    "not-cached": FileNotFoundError,
    "version-withdrawn": FileNotFoundError,
    "already-exists": FileExistsError,
    "conflict": RuntimeError,
    "access-denied": PermissionError,
    "authentication": PermissionError,
    "read-only": PermissionError,
    "io": OSError,
    "offline": (OSError, ConnectionError),
    "missing-extra": ImportError,
    "worker": RuntimeError,
}


class DetailedError(errors.CorruptError):
    """Takes other arguments than its base classes."""

    def __init__(self, path: str, offset: int) -> None:
        super().__init__(f"bad byte in {path}", hint="restore it")
        self.offset = offset


def test_kinds_match_the_list() -> None:
    assert list(BY_KIND) == list(PARENTS)


def test_every_class_is_exported_and_has_its_own_kind() -> None:
    exported = {getattr(errors, name) for name in errors.__all__ if name != "BY_KIND"}
    assert exported == {ReliveError, *BY_KIND.values()}
    assert all(cls.kind == kind for kind, cls in BY_KIND.items())


@pytest.mark.parametrize("kind", PARENTS)
def test_builtin_base_classes(kind: str) -> None:
    cls = BY_KIND[kind]
    assert issubclass(cls, ReliveError)
    parents = PARENTS[kind]
    for parent in parents if isinstance(parents, tuple) else (parents,):
        assert issubclass(cls, parent)
        with pytest.raises(parent, match="went wrong"):
            raise cls("it went wrong")


@pytest.mark.parametrize("cls", [ReliveError, *BY_KIND.values()])
def test_text_is_the_message_and_the_hint(cls: type[ReliveError]) -> None:
    assert str(cls("it's `so`")) == "it's `so`"
    assert str(cls("it's `so`", hint="do that")) == "it's `so`\nhint: do that"
    assert str(cls()) == ""
    assert cls("so").hint is None
    assert cls("so").args == ("so",)
    shown = traceback.format_exception_only(cls("a\tb"))
    assert shown == [f"relive.errors.{cls.__name__}: a\tb\n"]


@pytest.mark.parametrize("cls", [ReliveError, *BY_KIND.values()])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_everything(cls: type[ReliveError], protocol: int) -> None:
    error = cls("broken", hint="mend it")
    error.add_note("seen on a Tuesday")
    again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own data
    assert type(again) is cls
    assert str(again) == str(error)
    assert (again.message, again.hint, again.args) == ("broken", "mend it", ("broken",))
    assert again.__notes__ == ["seen on a Tuesday"]
    assert str(copy.deepcopy(error)) == str(error)


def test_pickle_of_a_subclass_with_other_arguments() -> None:
    again = pickle.loads(pickle.dumps(DetailedError("a.pack", 7)))  # noqa: S301 - our own data
    assert type(again) is DetailedError
    assert (again.offset, again.hint) == (7, "restore it")


def test_conflict_keeps_both_digests() -> None:
    error = errors.ConflictError("moved", digest="ab", current="cd", hint="publish again")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own data
    assert (again.digest, again.current, again.hint) == ("ab", "cd", "publish again")
