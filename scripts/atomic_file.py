"""Files that are written whole or not at all."""

import os


def write_atomically(path, data):
    """The whole file or none of it, also where the process is killed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
