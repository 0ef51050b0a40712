#pragma once

/// Everything public: the three modules, their functional twins, the mask helpers, state dicts and
/// archives.

#include <self_attention/io/checkpoint.h>
#include <self_attention/io/torchscript.h>
#include <self_attention/modules/full_projection_attention.h>
#include <self_attention/modules/inferred_length_attention.h>
#include <self_attention/modules/shared_projection_attention.h>
#include <self_attention/ops/attention.h>
#include <self_attention/ops/cpu_target.h>
#include <self_attention/shapes.h>
