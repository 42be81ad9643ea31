// The numerics id: `<path>-<revision>`, the name of one exact order of arithmetic. It is part of the namespace of every
// block name, so blocks computed by different arithmetic never meet. Change the revision when any bit of any logit may
// change.
#pragma once

#include <string_view>

namespace kvarto {

inline constexpr std::string_view kNumericsF32 = "f32-1";    // weights dequantised, everything in float32
inline constexpr std::string_view kNumericsInt8 = "int8-1";  // quantised weights times int8 activations

}  // namespace kvarto
