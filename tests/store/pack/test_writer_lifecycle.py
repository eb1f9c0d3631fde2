"""Life cycle of a pack writer: close, abort, leave and recovery."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import relive
from relive.errors import AlreadyExistsError, ClosedError, InvalidError, NotFoundError
from relive.store.pack import recover
from tests.store.pack.files import names_in, payloads, unfinished


def test_closed_writer_raises(tmp_path: Path) -> None:
    writer = relive.PackWriter(tmp_path / "a.a2pack")
    with writer:
        writer.append(b"one")
        writer.close()  # leaving the block does nothing more
    writer.close()
    for call in (writer.leave, writer.abort, writer.flush, lambda: writer.extend([b""])):
        with pytest.raises(ClosedError, match="is closed"):
            call()
    assert payloads(tmp_path / "a.a2pack") == [b"one"]


def test_aborted_writer_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.a2pack"
    path.write_bytes(b"old")
    with relive.PackWriter(path, overwrite=True) as writer:
        writer.append(b"one")
        writer.sync()
        writer.abort()
    writer.abort()
    for call in (writer.close, writer.flush, writer.sync, lambda: writer.append(b"")):
        with pytest.raises(ClosedError, match="aborted"):
            call()
    assert names_in(tmp_path) == ["a.a2pack"]
    assert path.read_bytes() == b"old"


def test_existing_file_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "a.a2pack"
    path.write_bytes(b"old")
    with pytest.raises(AlreadyExistsError, match="already exists") as refused:
        relive.PackWriter(path)
    assert refused.value.hint == "pass overwrite=True to replace it"
    with relive.PackWriter(path, overwrite=True) as writer:
        writer.append(b"new")
        assert path.read_bytes() == b"old"
    assert payloads(path) == [b"new"]


def test_writer_that_failed_to_close_can_be_aborted(tmp_path: Path) -> None:
    path = tmp_path / "a.a2pack"
    writer = relive.PackWriter(path)
    path.write_bytes(b"theirs")
    with pytest.raises(AlreadyExistsError):
        writer.close()
    with pytest.raises(ClosedError):
        writer.close()
    writer.abort()
    assert names_in(tmp_path) == ["a.a2pack"]


def test_file_created_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.a2pack"
    writer = relive.PackWriter(path)
    writer.append(b"mine")
    path.write_bytes(b"theirs")
    with pytest.raises(AlreadyExistsError):
        writer.close()
    assert path.read_bytes() == b"theirs"
    assert recover(path, tmp_path / "b.a2pack").entries == 1
    assert payloads(tmp_path / "b.a2pack") == [b"mine"]


def test_exception_in_the_block_leaves_an_unfinished_pack(tmp_path: Path) -> None:
    path = tmp_path / "a.a2pack"
    writer = relive.PackWriter(path)
    writer.append(b"one")
    writer.append(b"")
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError
    with pytest.raises(ClosedError, match="left unfinished"):
        writer.append(b"two")
    assert not path.exists()
    assert len(unfinished(path)) == 1
    found = recover(path)
    assert (found.path, found.entries, found.lost, found.reason) == (path, 2, 0, None)
    assert found.file_bytes == path.stat().st_size
    assert payloads(path) == [b"one", b""]
    assert names_in(tmp_path) == ["a.a2pack"]


def test_memory_does_not_grow_with_the_pack(tmp_path: Path) -> None:
    script = (
        "import resource, sys, relive\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with relive.PackWriter(sys.argv[1], align=64) as writer:\n"
        "    writer.extend(bytes(1000) for _ in range(20_000))\n"
        "    before = peak()\n"
        "    writer.extend(bytes(1000) for _ in range(150_000))\n"
        "print(peak() - before)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a")]
    grown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # 150 MB of payloads and 5 MB of index were written.
    assert int(grown) < 4096, f"{grown} KiB"
    assert len(relive.PackReader.open(tmp_path / "a")) == 170_000


def test_recover_reports_what_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.a2pack"
    writer = relive.PackWriter(path)
    for payload in (b"one", b"two", b"three"):
        writer.append(payload)
    writer.leave()
    (left,) = unfinished(path)
    data = bytearray(left.read_bytes())
    data[data.index(b"two")] ^= 1
    left.write_bytes(data)
    found = recover(path)
    assert (found.entries, found.lost) == (1, 2)
    assert found.reason == "entry 1 at offset 69632: the stored bytes do not match their checksum"
    assert payloads(path) == [b"one"]
    # The lost entries are where they were, next to their journal.
    assert found.rest == left.with_name(f"{left.name}.rest")
    assert found.rest.read_bytes()[69632:] == data[69632:]
    assert names_in(tmp_path) == [path.name, found.rest.name, f"{found.rest.name}.journal"]


@pytest.mark.parametrize(("count", "size"), [(30, 3_000_000), (500, 100), (3, 0)])
def test_idle_writer_that_is_killed_loses_nothing(tmp_path: Path, count: int, size: int) -> None:
    path = tmp_path / "a.a2pack"
    script = (
        "import sys, time, relive\n"
        "writer = relive.PackWriter(sys.argv[1], align=64)\n"
        "for number in range(int(sys.argv[2])):\n"
        "    writer.append(number.to_bytes(4, 'little') + bytes(int(sys.argv[3])))\n"
        "print('appended', flush=True)\n"
        "time.sleep(3600)\n"
    )
    command = [sys.executable, "-c", script, str(path), str(count), str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"appended\n"
        time.sleep(1)
        writer.kill()
    found = recover(path)
    assert (found.entries, found.lost, found.rest) == (count, 0, None)
    assert payloads(path) == [number.to_bytes(4, "little") + bytes(size) for number in range(count)]


def test_bytes_without_a_journal_record_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.a2pack"
    writer = relive.PackWriter(path, align=64)
    writer.append(b"one")
    writer.flush()
    (left,) = unfinished(path)
    journal = left.with_name(f"{left.name}.journal")
    before = journal.read_bytes()
    writer.append(b"two")
    writer.leave()
    journal.write_bytes(before)
    end = left.stat().st_size
    found = recover(path)
    assert (found.entries, found.lost) == (1, 0)
    assert found.rest is not None
    assert found.rest.read_bytes()[end - 3 :] == b"two"
    assert payloads(path) == [b"one"]


def test_error_of_the_background_thread_is_raised(tmp_path: Path) -> None:
    script = (
        "import resource, sys, time, relive\n"
        "writer = relive.PackWriter(sys.argv[1], capacity=10, align=64)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "writer.append(bytes(1000))\n"
        "try:\n"
        "    while True:\n"
        "        time.sleep(0.01)\n"
        "        writer.append(b'')\n"
        "except relive.errors.StorageError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    writer.append(b'')\n"
        "except relive.errors.ClosedError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a.a2pack")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "File too large" in lines[0]
    assert "can be recovered" in lines[1]


def test_recover_finds_unfinished_packs(tmp_path: Path) -> None:
    path = tmp_path / "a.a2pack"
    with pytest.raises(NotFoundError, match="no unfinished pack"):
        recover(path)
    writers = [relive.PackWriter(path), relive.PackWriter(path)]
    for number, writer in enumerate(writers):
        writer.append(b"%d" % number)
    with pytest.raises(InvalidError, match="2 unfinished packs were found"):
        recover(path)
    with pytest.raises(ClosedError, match="is being written by another process"):
        recover(unfinished(path)[0])
    for writer in writers:
        writer.leave()
    first, second = unfinished(path)
    assert recover(first).path == path
    with pytest.raises(AlreadyExistsError) as refused:
        recover(path)
    assert refused.value.hint == "pass overwrite=True to replace it"
    assert recover(f"{second}.journal", tmp_path / "b.a2pack").path == tmp_path / "b.a2pack"
    assert sorted(payloads(path) + payloads(tmp_path / "b.a2pack")) == [b"0", b"1"]
    assert names_in(tmp_path) == ["a.a2pack", "b.a2pack"]
