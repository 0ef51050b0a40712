"""MLServer: its installation, its model repository, its process."""

import json
import shutil
from pathlib import Path

from serving_export import archive_info, export
from serving_install import SCRIPTS, Environment, server_environment
from serving_process import ServerProcess, free_port


class MLServer:
    name = "mlserver"
    protocols = ("http-json", "grpc-binary")

    def __init__(self, folder, models, tool, library):
        """It is installed into a folder of `folder`; the repository is `models`."""
        self._environment = Environment(Path(folder).resolve() / self.name)
        self.repository, self._tool, self._library = Path(models).resolve(), tool, library

    def install(self):
        self._environment.install(SCRIPTS / "serving_mlserver.txt")

    @property
    def modules(self):
        """The folder of its modules, which has a client for any server of this protocol."""
        return self._environment.modules

    def clear(self):
        shutil.rmtree(self.repository, ignore_errors=True)
        self.repository.mkdir(parents=True)

    def write(self, model):
        """Writes the model into the repository, also over an older one, which then may be loaded."""
        folder = self.repository / model.name
        folder.mkdir(exist_ok=True)
        archive = folder / "model.pt"
        told = export(self._tool, model, "--out", archive)
        info = archive_info(archive)
        extra = {"archive": str(archive), "embed": info["embed"], "heads": info["heads"],
                 "max_batch_size": model.max_batch_size}
        settings = {"name": model.name, "implementation": "serving_mlserver_model.AttentionModel",
                    "parameters": {"uri": str(archive), "extra": extra}}
        (folder / "model-settings.json").write_text(json.dumps(settings, indent=1))
        return told

    def start(self, port, grpc_port=None, threads=2):
        settings = {"debug": False, "host": "127.0.0.1", "http_port": port,
                    "grpc_port": grpc_port or free_port(), "grpc_max_message_length": 2**31 - 1,
                    "metrics_endpoint": None,
                    "parallel_workers": 0}
        (self.repository / "settings.json").write_text(json.dumps(settings, indent=1))
        environment = server_environment(self._library, (), threads)
        environment["PYTHONPATH"] = str(SCRIPTS)
        command = [self._environment.folder / "bin" / "mlserver", "start", self.repository]
        url = f"http://127.0.0.1:{port}/v2/health/ready"
        return ServerProcess(command, environment, self.repository.with_suffix(".log"), url)
