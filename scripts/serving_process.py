"""A server's process: started, waited for, and stopped, also where what started it is killed."""

import ctypes
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

PR_SET_PDEATHSIG = 1  # sys/prctl.h
READY_SECONDS = 300
STOP_SECONDS = 30


class ServingError(Exception):
    """What the user can put right."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_free(port, option="--port"):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise ServingError(f"[serving] {option}: expected a free port, got {port}: {error}")


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class ServerProcess:
    """Runs a command until stop(), with its output in a file. Its main thread must start it."""

    def __init__(self, command, environment, log, ready_url):
        self._log, self._url = log, ready_url
        with open(log, "w") as output:
            self._process = subprocess.Popen(
                [str(word) for word in command], env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, preexec_fn=end_with_parent)

    def wait_until_ready(self):
        end = time.monotonic() + READY_SECONDS
        while self._process.poll() is None and time.monotonic() < end:
            try:
                with urllib.request.urlopen(self._url, timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (OSError, urllib.error.URLError):
                pass
            time.sleep(0.2)
        code = self._process.poll()
        self.stop()
        state = f"ended with {code}" if code is not None else f"not ready in {READY_SECONDS} s"
        raise ServingError(f"[serving] server: expected it to become ready, got: {state}; its output, "
                           f"{self._log}, ends:\n{self.log_end()}")

    def log_end(self, lines=25):
        with open(self._log, errors="replace") as file:
            return "".join(file.readlines()[-lines:])

    @property
    def pid(self):
        return self._process.pid

    def running(self):
        return self._process.poll() is None

    def wait(self):
        return self._process.wait()

    def stop(self):
        """The exit status."""
        if self.running():
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait()
