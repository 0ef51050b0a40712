#pragma once

#include <self_attention/api.h>
#include <self_attention/io/script_signature.h>
#include <self_attention/modules/full_projection_attention.h>
#include <self_attention/modules/inferred_length_attention.h>
#include <self_attention/modules/shared_projection_attention.h>
#include <torch/arg.h>

#include <string>

namespace self_attention {

/// The form of an exported archive.
struct SELF_ATTENTION_API ExportOptions {
  /// kPortable archives run anywhere; kFused ones need this library and compute as a module does.
  TORCH_ARG(ScriptOps, ops) = ScriptOps::kPortable;
  /// Whether forward takes a mask. kRequired and kNone give signatures of plain Tensors.
  TORCH_ARG(ScriptMask, mask) = ScriptMask::kRequired;
  /// kSingle is for FullProjectionAttention alone.
  TORCH_ARG(ScriptInputs, inputs) = ScriptInputs::kSeparate;
  /// Makes the parameters constants of the code: some microseconds less a call. A frozen archive
  /// has no state dict, cannot be trained, and is moved to a device by loading it there.
  TORCH_ARG(bool, freeze) = false;
};

/// Writes a module as a TorchScript archive for torch.jit.load of Python, torch::jit::load of C++
/// and servers such as Triton. A portable one runs without this library.
///
/// forward takes the Python class's arguments in its order, then the mask:
///
///     SharedProjectionAttention   values, keys, query[, mask]
///     FullProjectionAttention     values, keys, query[, mask]    or, kSingle, x[, mask]
///     InferredLengthAttention     values, keys, queries[, mask]
///
/// Shapes, dtypes and masks are those of the module's forward. Parameters have their names, so the
/// archive is also a state dict: load_state_dict reads it, and Python's
/// `model.load_state_dict(torch.jit.load(file).state_dict())`. They are stored as on the CPU, in
/// their dtype; load the archive with a device to run it elsewhere. The archive may be converted to
/// another dtype after loading, float16 masks included.
///
/// Portable archives. On one machine, LibTorch and thread count outputs and gradients are equal to
/// those of the module with Backend::Eager to the bit, from the first call on and after TorchScript
/// has optimised the code; those of a frozen archive to a module's whose parameters require no
/// gradient. On CUDA TorchScript may fuse operations, and under autocast it casts by lists of its
/// own; both round differently.
///
/// Unlike the module, such an archive never warns, leaves dtypes and devices that do not fit to
/// LibTorch's own errors, and throws torch::jit::JITException for what it refuses itself. Its code
/// uses long-standing ATen operators only, none of this library.
///
/// Fused archives. forward is one call of the module's functional form, as
/// self_attention::shared_projection_attention, whose outputs, gradients, warnings and errors it
/// has: those of the module with Backend::Auto. is_causal is taken from the module. The library
/// must be loaded before the archive: by torch.ops.load_library("libself_attention.so") in Python,
/// by linking SelfAttention::self_attention in C++, by LD_PRELOAD for a server. Where it is not,
/// loading fails with "Unknown builtin op", in a file whose name tells what to load.
///
/// An extra file, `self_attention.json`, holds versions, sizes, options and what must be loaded;
/// `self-attention inspect` shows it.
///
/// Throws c10::ValueError and c10::TypeError, before anything is written, for kSingle with another
/// module, for kPortable with a module that is causal, whose mask an archive takes as an argument,
/// for a module in training mode that drops weights, which no archive does, and for parameters that
/// do not fit one another or have no data. Throws c10::ValueError where the file cannot be written:
/// it appears whole or not at all, an older one is replaced. Takes memory for a copy of parameters
/// that are not on the CPU or are views of larger storages.
///
/// Using archives:
/// - Loading one runs code that is in it. Never give torch::jit::load a file from a stranger;
///   load_state_dict reads the parameters of any archive and executes nothing.
/// - The first calls compile: let a server make at least three before it takes requests.
/// - Threads may share a loaded module. A copy for each is deepcopy(), never clone(), which may
///   share the parameters: what one copy trains or converts then changes in the other.
SELF_ATTENTION_API void export_torchscript(const SharedProjectionAttentionImpl& module,
                                           const std::string& file,
                                           const ExportOptions& options = {});
/// Likewise.
SELF_ATTENTION_API void export_torchscript(const FullProjectionAttentionImpl& module,
                                           const std::string& file,
                                           const ExportOptions& options = {});
/// Likewise.
SELF_ATTENTION_API void export_torchscript(const InferredLengthAttentionImpl& module,
                                           const std::string& file,
                                           const ExportOptions& options = {});

}  // namespace self_attention
