// The weight formats that are computed with: to add one, write its header, include it and add its line. Any thread.
#pragma once

#include "ops/weight/bf16.h"
#include "ops/weight/f16.h"
#include "ops/weight/f32.h"
#include "ops/weight/iq4_nl.h"
#include "ops/weight/iq4_xs.h"
#include "ops/weight/mxfp4.h"
#include "ops/weight/q2_k.h"
#include "ops/weight/q3_k.h"
#include "ops/weight/q4_0.h"
#include "ops/weight/q4_1.h"
#include "ops/weight/q4_k.h"
#include "ops/weight/q5_0.h"
#include "ops/weight/q5_1.h"
#include "ops/weight/q5_k.h"
#include "ops/weight/q6_k.h"
#include "ops/weight/q8_0.h"
#include "ops/weight/weight.h"

namespace kvarto::weight {

// clang-format off
inline constexpr WeightFormat kList[] = {
    kF32,
    kF16,
    kBF16,
    kQ4_0,
    kQ4_1,
    kQ5_0,
    kQ5_1,
    kQ8_0,
    kQ2_K,
    kQ3_K,
    kQ4_K,
    kQ5_K,
    kQ6_K,
    kIQ4_NL,
    kIQ4_XS,
    kMXFP4,
};
// clang-format on

}  // namespace kvarto::weight
