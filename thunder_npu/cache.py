"""Where compiled code is kept between processes: one root, private directories, atomic writes, checks of what is read.

The root is $THUNDER_NPU_CACHE_DIR, else $XDG_CACHE_HOME/thunder_npu, else ~/.cache/thunder_npu. What lies below it is
loaded as code, so a directory that somebody else owns or may write to is refused, never repaired: its content may be
somebody else's already. Imports neither torch nor Thunder nor anything else of the package, and compiles nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["CacheError", "directory", "intact", "locked", "path", "seal", "write"]

_REMEDY = "set THUNDER_NPU_CACHE_DIR to a directory of your own"


class CacheError(RuntimeError):
    """The cache cannot be used; the message names the directory, what is wrong with it, and the remedy."""


def path(*parts: str) -> Path:
    """The absolute path of an entry; nothing is made or checked.

    As the XDG base directory specification asks, a relative $XDG_CACHE_HOME is ignored.

    Raises:
        CacheError: no variable names a root, and the user has no home directory.
    """
    if own := os.environ.get("THUNDER_NPU_CACHE_DIR"):
        root = Path(own).expanduser().absolute()
    elif os.path.isabs(base := os.environ.get("XDG_CACHE_HOME", "")):
        root = Path(base, "thunder_npu")
    else:
        try:
            root = Path.home() / ".cache" / "thunder_npu"
        except RuntimeError as error:
            raise CacheError(f"no place for the cache of compiled code ({error}): {_REMEDY}") from error
    return root.joinpath(*parts)


def directory(*parts: str) -> Path:
    """The directory `parts` below the root, made with mode 0700 where it is missing.

    Raises:
        CacheError: it cannot be made, or it or a directory between it and the root belongs to another user or can be
            written by the group or by others.
    """
    for depth in range(len(parts) + 1):
        folder = path(*parts[:depth])
        try:
            for missing in [p for p in reversed((folder, *folder.parents)) if not p.exists()]:
                missing.mkdir(mode=0o700, exist_ok=True)
            status = folder.stat()
            if not folder.is_dir():
                raise NotADirectoryError(f"{folder} is a file")
        except OSError as error:
            raise CacheError(f"the cache directory {folder} cannot be made or read ({error}): {_REMEDY}") from error
        if status.st_uid != os.geteuid():
            raise CacheError(
                f"the cache directory {folder} belongs to user {status.st_uid}, not to you (user {os.geteuid()}), and "
                f"compiled code is loaded from it: {_REMEDY}"
            )
        if status.st_mode & 0o022:
            raise CacheError(
                f"the cache directory {folder} can be written by others (mode {status.st_mode & 0o777:04o}), and "
                f"compiled code is loaded from it: empty it and run `chmod go-w {folder}`, or {_REMEDY}"
            )
    return folder


def write(file: Path, content: str | bytes, mode: int = 0o600) -> None:
    """Make `file` hold `content` (a string as UTF-8, whatever the locale), at once or not at all.

    A reader, or a second process that writes the same file, sees a whole one.

    Raises:
        CacheError: the directory cannot be written, or the disk is full.
    """
    data = content.encode() if isinstance(content, str) else content
    with _writing(file.parent):
        descriptor, scratch = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(descriptor, "wb") as out:
                out.write(data)
            os.chmod(scratch, mode)
            os.replace(scratch, file)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(scratch)
            raise


def seal(file: Path) -> None:
    """Record what `file` holds, for `intact`."""
    write(_seal_of(file), hashlib.sha256(file.read_bytes()).hexdigest())


def intact(file: Path) -> bool:
    """Whether `file` is there and holds what it held when it was sealed; an entry that does not is to be made again."""
    try:
        return _seal_of(file).read_bytes() == hashlib.sha256(file.read_bytes()).hexdigest().encode()
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of an entry (`file` + ".lock"); another process that asks for it waits.

    Raises:
        CacheError: the directory cannot be written.
    """
    with contextlib.ExitStack() as held:
        with _writing(file.parent):
            lock = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _seal_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(f"the cache directory {folder} cannot be written ({error}): {_REMEDY}") from error
