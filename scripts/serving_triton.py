"""Triton Inference Server: its installation, its model repository, its process.

The package index has the server inside nvidia-pytriton, whose Python backend takes the stub of the
Python in use. The archives run in that backend: the package has no PyTorch one.
"""

import shutil
import sys
from pathlib import Path

from serving_export import export
from serving_install import (SCRIPTS, Environment, python_library_folder, server_environment,
                             torch_folder)
from serving_process import ServerProcess, ServingError

STUB = "triton_python_backend_stub"


class Triton:
    name = "triton"
    protocols = ("http-json", "http-binary", "grpc-binary", "http-shared")

    def __init__(self, folder, models, tool, library):
        """It is installed into a folder of `folder`; the repository is `models`."""
        self._environment = Environment(Path(folder).resolve() / self.name)
        self.repository, self._tool, self._library = Path(models).resolve(), tool, library
        self._server = self._environment.modules / "pytriton" / "tritonserver"

    def install(self):
        self._environment.install(SCRIPTS / "serving_triton.txt")
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = self._server / "python_backend_stubs" / version / STUB
        if not stub.exists():
            raise ServingError(f"[serving] python: expected one that Triton has a stub for, got {version}")
        beside_backend = self._server / "backends" / "python" / STUB
        if not beside_backend.exists():
            beside_backend.symlink_to(stub)

    def clear(self):
        shutil.rmtree(self.repository, ignore_errors=True)
        self.repository.mkdir(parents=True)

    def write(self, model):
        """Writes the model into the repository, also over an older one, which then may be loaded."""
        told = export(self._tool, model, "--triton", self.repository, "--triton-name", model.name)
        folder = self.repository / model.name
        config = folder / "config.pbtxt"
        text = config.read_text().replace('platform: "pytorch_libtorch"\n', "")
        config.write_text(text.replace('backend: "pytorch"', 'backend: "python"'))
        shutil.copyfile(SCRIPTS / "serving_triton_model.py", folder / "1" / "model.py")
        return told

    def start(self, port, grpc_port=None, threads=2):
        environment = server_environment(self._library, (SCRIPTS, torch_folder()), threads)
        libraries = [environment.get("LD_LIBRARY_PATH"), python_library_folder()]
        environment["LD_LIBRARY_PATH"] = ":".join(str(folder) for folder in libraries if folder)
        command = [
            self._server / "bin" / "tritonserver", f"--model-repository={self.repository}",
            f"--backend-directory={self._server / 'backends'}", "--disable-auto-complete-config",
            "--model-control-mode=explicit", "--load-model=*", "--strict-readiness=true",
            "--http-address=127.0.0.1", f"--http-port={port}", "--allow-metrics=false",
            "--pinned-memory-pool-byte-size=0", "--exit-timeout-secs=10",
        ]
        command += ["--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}"] if grpc_port else ["--allow-grpc=false"]
        url = f"http://127.0.0.1:{port}/v2/health/ready"
        return ServerProcess(command, environment, self.repository.with_suffix(".log"), url)
