"""Files that are written whole or not at all."""

import fcntl
import os


def open_locked(path):
    """An empty file at `path` that others wait for, in place of what a killed process left there."""
    while True:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666), "wb")
        fcntl.flock(file, fcntl.LOCK_EX)
        # The one that was waited for has renamed it.
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            file.truncate()
            return file
        file.close()


def write_atomically(path, data):
    """The whole file or none of it, also where the process is killed or the disk is full."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open_locked(temporary) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink()
            raise
