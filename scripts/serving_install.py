"""Installs a server into a folder of its own, beside the Python that has torch and not into it."""

import ctypes
import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from serving_process import ServingError

SCRIPTS = Path(__file__).resolve().parent


# What pip says of an index that it cannot reach, or that is out of order.
UNREACHABLE = re.compile(r"connection broken|ConnectionError|timed out|name resolution|50[0-9] Server Error", re.I)


class PackageError(ServingError):
    """The package index did not give the packages."""

    def __init__(self, message, unreachable):
        super().__init__(message)
        self.unreachable = unreachable


def torch_folder():
    """The folder of modules that torch lies in."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise ServingError(f"[serving] python: expected one with torch, got {sys.executable}")
    return Path(spec.submodule_search_locations[0]).parent


class Environment:
    """A virtual environment that sees the modules beside torch after its own."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.python = self.folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.modules = self.folder / "lib" / version / "site-packages"

    def install(self, requirements):
        """Installs that file's packages, without what they ask for, unless they are there."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with open(self.folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another test may install the same
            self._install(requirements)

    def _install(self, requirements):
        wanted = requirements.read_text() + f"{torch_folder()}\n"
        done = self.folder / "installed"
        if done.exists() and done.read_text() == wanted:
            return
        done.unlink(missing_ok=True)
        print(f"== installing {requirements.stem} into {self.folder}", flush=True)
        venv.create(self.folder, clear=True, with_pip=True, symlinks=True)
        (self.modules / "torch.pth").write_text(f"{torch_folder()}\n")
        run = subprocess.run(
            [self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps",
             "--no-compile", "-r", requirements], capture_output=True, text=True)
        if run.returncode != 0:
            last = "\n".join(run.stderr.strip().splitlines()[-5:])
            raise PackageError(f"[serving] pip: expected {requirements.name} to install, got:\n{last}",
                               unreachable=bool(UNREACHABLE.search(run.stderr)))
        done.write_text(wanted)


def server_environment(library, modules, threads):
    """Environment variables of a server: where modules and the library are, how many threads run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLSERVER_")}
    environment["SELF_ATTENTION_PYTHON_PATH"] = os.pathsep.join(map(str, modules))
    environment["OMP_NUM_THREADS"] = str(threads)
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    if library:
        environment["SELF_ATTENTION_LIBRARY"] = str(library)
    return environment


def python_library_folder():
    """The folder of this Python's shared library, None where the system finds it by itself."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folder = Path(sysconfig.get_config_var("LIBDIR") or "")
    if (folder / name).exists():
        return folder
    try:
        ctypes.CDLL(name)
    except OSError:
        raise ServingError(f"[serving] python: expected {name} beside it, got none; Debian has it in the "
                           f"package {name.split('.so')[0]}")
    return None
