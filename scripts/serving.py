"""Installs a server, exports a module and serves it on this machine: serve_triton, serve_mlserver."""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import reference_modules
from reference_spec import VARIANTS
from serving_export import Model, archive_info
from serving_mlserver import MLServer
from serving_process import ServingError, check_free
from serving_triton import Triton

SERVERS = {"triton": Triton, "mlserver": MLServer}
RANDOM_EMBED, RANDOM_HEADS = 8, 2
DATATYPES = {"float32": "FP32", "float64": "FP64"}  # those that JSON has words for


def parse():
    parser = argparse.ArgumentParser(prog="serve", description=__doc__)
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("--tool", required=True, help="the self-attention command")
    parser.add_argument("--library", required=True, help="libself_attention.so")
    parser.add_argument("--variant", choices=VARIANTS, default="shared_projection")
    parser.add_argument("--weights", type=Path, help="as of `self-attention export`; else random ones")
    parser.add_argument("--heads", type=int, default=0, help="told by weights but full_projection's")
    parser.add_argument("--ops", choices=("fused", "portable"), default="fused")
    parser.add_argument("--mask", choices=("required", "none"), default="none")
    parser.add_argument("--max-batch-size", type=int, default=64)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, help="else none is served, or any")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of one call")
    parser.add_argument("--folder", type=Path, required=True, help="where servers and models go")
    return parser.parse_args()


def random_weights(variant, folder):
    torch.manual_seed(0)
    module = getattr(reference_modules, VARIANTS[variant].class_name)(RANDOM_EMBED, RANDOM_HEADS)
    path = folder / "random.safetensors"
    save_file(module.state_dict(), path)
    return path


def example_request(model, embed, datatype):
    """A request in JSON."""
    length = 4
    third = "queries" if model.variant == "inferred_length" else "query"
    inputs = [{"name": name, "shape": [1, length, embed], "datatype": datatype,
               "data": [round(0.01 * i, 2) for i in range(length * embed)]}
              for name in ("values", "keys", third)]
    if model.mask == "required":
        inputs.append({"name": "mask", "shape": [1, 1, 1, length], "datatype": "BOOL",
                       "data": [True] * length})
    return {"inputs": inputs}


def write_model(options, server, folder):
    """Fills the repository. The model's name, and a file with a request where JSON can hold one."""
    server.clear()
    weights, heads = options.weights, options.heads
    if weights is None:
        weights = random_weights(options.variant, folder)
        heads = heads or RANDOM_HEADS * (options.variant == "full_projection")
    model = Model(options.variant, weights, options.variant, options.ops, options.mask, heads,
                  options.max_batch_size)
    told = server.write(model)
    datatype = next((kind for dtype, kind in DATATYPES.items() if f" {dtype}," in told), None)
    if datatype is None:
        return model.name, None
    info = archive_info(next(server.repository.glob("**/model.pt")))
    request = folder / "request.json"
    request.write_text(json.dumps(example_request(model, info["embed"], datatype)))
    return model.name, request


def serve(options):
    check_free(options.port)
    if options.grpc_port is not None:
        check_free(options.grpc_port, "--grpc-port")
    folder = options.folder.resolve() / f"{options.server}_{options.port}"
    server = SERVERS[options.server](options.folder, folder / "models", options.tool, options.library)
    server.install()
    name, request = write_model(options, server, folder)
    print("== starting", flush=True)
    process = server.start(options.port, options.grpc_port, options.threads)
    try:
        process.wait_until_ready()
        url = f"http://127.0.0.1:{options.port}/v2/models/{name}"
        print(f"== ready: {url}; Ctrl-C stops it", flush=True)
        if request:
            print(f"== to try it: curl --json @{request} {url}/infer", flush=True)
        return process.wait()
    finally:
        process.stop()


def main():
    try:
        return serve(parse())
    except ServingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
