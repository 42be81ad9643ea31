// Setting: what is compared, as text. Parts joined by ':', each key=value:
//   kv=DTYPE            keys and values (any name of --kv-cache-dtype; f16, bf16, ...)
//   k=DTYPE, v=DTYPE    one of the two
//   noise=DB            a planted fault: normal noise disturbs the keys, of that signal-to-noise ratio, [-20, 200] dB
//   hide=SHARE          a planted fault: no later token sees that share of the tokens, chosen at random, [0, 1)
// e.g. "k=f16:v=bf16". Faults show that an evaluation sees what it should; they are no way to serve. Any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvarto/options.h"
#include "kvarto/result.h"

namespace kvarto {

struct PlantedFault {
  std::optional<double> key_noise_db = {};
  double hidden_share = 0;
  uint64_t seed = 1;
  bool any() const { return key_noise_db.has_value() || hidden_share > 0; }
};

struct Setting {
  std::string name;  // as it was written
  std::optional<KvDtype> k_dtype = {}, v_dtype = {};
  PlantedFault fault = {};
  bool operator==(const Setting& other) const { return name == other.name; }
};

// Errors name the part and what may stand there.
Result<Setting> parse_setting(std::string_view text);
// Settings joined by ','. "k=X,v=Y" is refused: ':' is meant, or one setting at a time.
Result<std::vector<Setting>> parse_settings(std::string_view text);

}  // namespace kvarto
