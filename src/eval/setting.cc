#include "eval/setting.h"

#include <algorithm>
#include <charconv>

#include "format/printable.h"

namespace kvarto {
namespace {

// What a key sets; no two parts of a setting may set the same.
constexpr unsigned kKeys = 1, kValues = 2, kNoise = 4, kHidden = 8;
struct Key {
  std::string_view name;
  unsigned sets;
};
constexpr Key kKnown[] = {{"kv", kKeys | kValues}, {"k", kKeys}, {"v", kValues}, {"noise", kNoise}, {"hide", kHidden}};

Result<double> read_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return fail(ErrorCode::invalid_argument, kvarto::quoted(text) + " is no number");
}

Status read_value(const Key& key, std::string_view value, Setting& setting) {
  if ((key.sets & (kKeys | kValues)) != 0) {
    ASSIGN_OR_RETURN(const std::optional<KvDtype> dtype, parse_kv_dtype(value));
    if ((key.sets & kKeys) != 0) setting.k_dtype = dtype;
    if ((key.sets & kValues) != 0) setting.v_dtype = dtype;
    return {};
  }
  ASSIGN_OR_RETURN(const double number, read_number(value));
  if (key.sets == kNoise) {
    if (!(number >= -20 && number <= 200)) {
      return fail(ErrorCode::invalid_argument, "a signal-to-noise ratio is in [-20, 200] dB");
    }
    setting.fault.key_noise_db = number;
    return {};
  }
  if (!(number >= 0 && number < 1)) return fail(ErrorCode::invalid_argument, "a share is in [0, 1)");
  setting.fault.hidden_share = number;
  return {};
}

// Adds what the part sets to `set`.
Status read_part(std::string_view part, Setting& setting, unsigned& set) {
  const size_t equals = std::min(part.find('='), part.size());
  const Key* const key = std::ranges::find(kKnown, part.substr(0, equals), &Key::name);
  if (equals == part.size() || key == std::end(kKnown)) {
    return fail(ErrorCode::invalid_argument,
                "it is none of kv=DTYPE, k=DTYPE, v=DTYPE, noise=DB, hide=SHARE; write such parts, joined by ':'");
  }
  if ((set & key->sets) != 0) {
    return fail(ErrorCode::invalid_argument, "a part before it has set that already; leave one of them out");
  }
  set |= key->sets;
  return read_value(*key, part.substr(equals + 1), setting);
}

// Calls `take` with each of the parts of `text` between separators.
template <typename Take>
Status each_part(std::string_view text, char separator, const Take& take) {
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find(separator, from), text.size());
    RETURN_IF_ERROR(take(text.substr(from, end - from)));
    from = end + 1;
  }
  return {};
}

// It is nothing but `key`=DTYPE.
bool is_only(const Setting& setting, std::string_view key) {
  return setting.name.starts_with(std::string(key) + '=') && setting.name.find(':') == std::string::npos;
}

// "k=X,v=Y" is two settings, and hardly ever meant to be.
Status check_halves(const std::vector<Setting>& settings) {
  for (size_t i = 1; i < settings.size(); ++i) {
    const Setting &before = settings[i - 1], &here = settings[i];
    if (!(is_only(before, "k") && is_only(here, "v")) && !(is_only(before, "v") && is_only(here, "k"))) continue;
    return fail(ErrorCode::invalid_argument,
                kvarto::quoted(before.name + "," + here.name) +
                    " are two settings, one of the keys alone and one of the values alone; join them by ':' for one (" +
                    kvarto::printable(before.name + ":" + here.name) + "), or give each to a --candidate of its own");
  }
  return {};
}

}  // namespace

Result<Setting> parse_setting(std::string_view text) {
  Setting setting{.name = std::string(text)};
  unsigned set = 0;
  RETURN_IF_ERROR(each_part(text, ':', [&](std::string_view part) -> Status {
    const Status read = read_part(part, setting, set);
    if (read) return {};
    const std::string where = "part " + kvarto::quoted(part) + " of setting " + kvarto::quoted(text) + ": ";
    return fail(read.error().code, where + read.error().message);
  }));
  return setting;
}

Result<std::vector<Setting>> parse_settings(std::string_view text) {
  std::vector<Setting> settings;
  RETURN_IF_ERROR(each_part(text, ',', [&](std::string_view part) -> Status {
    ASSIGN_OR_RETURN(Setting setting, parse_setting(part));
    if (std::ranges::find(settings, setting) != settings.end()) {
      return fail(ErrorCode::invalid_argument,
                  "setting " + kvarto::quoted(part) + " is there twice; leave one of them out");
    }
    settings.push_back(std::move(setting));
    return {};
  }));
  RETURN_IF_ERROR(check_halves(settings));
  return settings;
}

}  // namespace kvarto
