#pragma once

/// Everything public: the three modules, their functional twins and the mask helpers.

#include <self_attention/modules/full_projection_attention.h>
#include <self_attention/modules/inferred_length_attention.h>
#include <self_attention/modules/shared_projection_attention.h>
#include <self_attention/shapes.h>
