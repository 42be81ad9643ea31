#include "cli/serve_flags.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/serve_environment.h"
#include "cli/serve_values.h"
#include "server/api_request.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// A flag as it was found, over all places where it stood.
struct Given {
  const FlagRow* row = nullptr;
  std::string name;  // one of the row's
  FlagValue value;
  bool none = false;  // "" or None: as if it were not there
};

// --max_model_len is --max-model-len; what follows a dot are keys of JSON, which keep their spelling.
std::string dashes(std::string name) {
  const size_t end = std::min(name.find('.'), name.size());
  if (name.starts_with("--")) std::replace(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return name;
}

using Index = std::map<std::string_view, const FlagRow*>;
const Index& flag_index() {
  static const Index kIndex = [] {
    Index index;
    for (const FlagGroup& group : flag_groups()) {
      for (const FlagRow& row : group.rows) {
        for (const std::string_view name : split(row.names, ' ')) index[name] = &row;
      }
    }
    return index;
  }();
  return kIndex;
}

struct Found {
  const FlagRow* row = nullptr;
  std::string name;
  bool on = true;
};
std::optional<Found> find_flag(const std::string& name) {
  const Index& index = flag_index();
  if (const auto at = index.find(name); at != index.end()) return Found{at->second, name};
  if (!name.starts_with("--no-")) return std::nullopt;
  const auto at = index.find("--" + name.substr(5));
  if (at == index.end() || at->second->kind != FlagKind::toggle) return std::nullopt;
  return Found{at->second, std::string(at->first), false};
}

tl::unexpected<Error> unknown(const std::string& word) {
  const std::string near = nearest_flag(word);
  return fail(ErrorCode::invalid_argument, "unknown flag " + kvarto::quoted(word) +
                                               (near.empty() ? "; see" : "; did you mean " + near + "? See") +
                                               " `kvarto serve --help=all`");
}

bool is_flag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && find_flag(dashes(word)).has_value();
}

// Reads words into flags.
class LineReader {
 public:
  explicit LineReader(ServeLine& line) : line_(line) {}

  Status read(const std::vector<std::string>& words) {
    words_ = &words;
    for (next_ = 0; next_ < words.size();) RETURN_IF_ERROR(read_word());
    return {};
  }
  std::vector<Given>& given() { return given_; }
  const std::optional<std::string>& model() const { return model_; }
  const std::string& config() const { return config_; }
  const std::optional<std::string>& topic() const { return topic_; }

 private:
  Status read_word();
  Status take_toggle(Given& given, const std::optional<std::string>& inline_value);
  Result<std::string> take_value(const std::string& name, std::optional<std::string> inline_value);
  void take_list(Given& given, const std::optional<std::string>& inline_value);
  Status take_json(const FlagRow& row, const std::string& name, const std::string& keys,
                   std::optional<std::string> inline_value);
  Given& slot(const FlagRow& row, const std::string& name);

  ServeLine& line_;
  const std::vector<std::string>* words_ = nullptr;
  size_t next_ = 0;
  std::vector<Given> given_;
  std::optional<std::string> model_, topic_;
  std::string config_;
};

// Where a flag's value is kept. Names of one row that works mean the same, those of others only share their text.
Given& LineReader::slot(const FlagRow& row, const std::string& name) {
  const auto same = [&](const Given& g) { return g.row == &row && (row.fate == FlagFate::works || g.name == name); };
  const auto at = std::ranges::find_if(given_, same);
  if (at != given_.end()) {
    at->name = name;
    at->none = false;
    return *at;
  }
  given_.push_back({.row = &row, .name = name, .value = {}, .none = false});
  return given_.back();
}

Status LineReader::read_word() {
  const std::string word = (*words_)[next_++];
  if (word.size() < 2 || word[0] != '-') {
    if (model_) {
      return fail(ErrorCode::invalid_argument,
                  "two models, " + kvarto::quoted(*model_) + " and " + kvarto::quoted(word) + "; a server has one");
    }
    model_ = word;
    return {};
  }
  const size_t equals = word.find('=');
  std::string name = dashes(word.substr(0, equals));
  std::optional<std::string> inline_value;
  if (equals != std::string::npos) inline_value = word.substr(equals + 1);
  if (name == "--help" || name == "-h") {
    topic_ = inline_value.value_or("");
    return {};
  }
  if (name == "--check-flags") {
    line_.check = true;
    return {};
  }
  if (name == "--config") return take_value(name, std::move(inline_value)).map([&](auto path) { config_ = path; });
  if (name.size() == 3 && name.starts_with("-O")) {  // -O3
    inline_value = name.substr(2);
    name = "-O";
  }
  const size_t dot = name.find('.');
  const std::string keys = dot == std::string::npos ? "" : name.substr(dot + 1);
  const std::optional<Found> found = find_flag(name.substr(0, dot));
  if (!found || (dot != std::string::npos && found->row->kind != FlagKind::json)) return unknown(word);
  if (found->row->kind == FlagKind::json) return take_json(*found->row, found->name, keys, std::move(inline_value));
  Given& given = slot(*found->row, found->name);
  switch (found->row->kind) {
    case FlagKind::toggle:
      given.value.on = found->on;
      return take_toggle(given, inline_value);
    case FlagKind::list:
      take_list(given, inline_value);
      if (given.value.words.empty()) return fail(ErrorCode::invalid_argument, name + " needs a value");
      return {};
    case FlagKind::maybe: {
      constexpr std::string_view kWords[] = {"on", "off", "auto", "0", "1", "true", "false"};
      const bool follows =
          !inline_value && next_ < words_->size() && std::ranges::find(kWords, (*words_)[next_]) != std::end(kWords);
      given.value.words = {follows ? (*words_)[next_++] : inline_value.value_or("on")};
      return {};
    }
    default: {
      ASSIGN_OR_RETURN(std::string text, take_value(name, std::move(inline_value)));
      given.none = text.empty() || text == "None";
      given.value.words = {std::move(text)};
      return {};
    }
  }
}

Status LineReader::take_toggle(Given& given, const std::optional<std::string>& inline_value) {
  if (!inline_value) return {};
  std::string text = *inline_value;
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (text != "true" && text != "false") {
    return fail(ErrorCode::invalid_argument, given.name + "=" + printable(*inline_value) + " is not a switch; write " +
                                                 given.name + " or --no-" + given.name.substr(2));
  }
  given.value.on = given.value.on == (text == "true");
  return {};
}

Result<std::string> LineReader::take_value(const std::string& name, std::optional<std::string> inline_value) {
  if (inline_value) return *std::move(inline_value);
  if (next_ == words_->size() || (*words_)[next_].starts_with("--") || is_flag((*words_)[next_])) {
    return fail(ErrorCode::invalid_argument, name + " needs a value");
  }
  return (*words_)[next_++];
}

// Every word up to the next flag, as Python's argparse does it.
void LineReader::take_list(Given& given, const std::optional<std::string>& inline_value) {
  if (!given.row->repeats) given.value.words.clear();
  if (inline_value) return given.value.words.push_back(*inline_value);
  while (next_ < words_->size() && !((*words_)[next_].size() > 1 && (*words_)[next_][0] == '-')) {
    given.value.words.push_back((*words_)[next_++]);
  }
}

// What a dotted key is given: JSON where it is some, else a string.
Json json_or_string(const std::string& text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(text) : value;
}

Status LineReader::take_json(const FlagRow& row, const std::string& name, const std::string& keys,
                             std::optional<std::string> inline_value) {
  ASSIGN_OR_RETURN(const std::string text, take_value(name, std::move(inline_value)));
  Given& given = slot(row, name);
  if (keys.empty() && (text.empty() || text == "None")) {
    given.none = true;
    return {};
  }
  Json before = given.value.words.empty() ? Json::object() : json_or_string(given.value.text());
  if (!before.is_object()) before = Json::object();
  if (keys.empty()) {
    const Result<Json> whole = parse_json(text);
    if (row.fate == FlagFate::works && !whole) {
      return fail(ErrorCode::invalid_argument, name + " " + kvarto::quoted(text) + ": " + whole.error().message);
    }
    if (!whole || !whole->is_object()) {
      given.value.words = {text};
      return {};
    }
    before.update(*whole, /*merge_objects=*/true);
  } else {
    Json* at = &before;
    const bool append = keys.ends_with('+');
    for (const std::string_view key : split(std::string_view(keys).substr(0, keys.size() - (append ? 1 : 0)), '.')) {
      if (!at->is_object()) *at = Json::object();
      at = &(*at)[std::string(key)];
    }
    if (append) {
      if (!at->is_array()) *at = Json::array();
      at->push_back(json_or_string(text));
    } else {
      *at = json_or_string(text);
    }
  }
  given.value.words = {before.dump()};
  return {};
}

// --- what the flags come to

std::string shown_value(const Given& given) {
  if (given.row->secret) return "(not shown)";
  if (given.row->kind == FlagKind::toggle) return given.value.on ? "true" : "false";
  std::string text;
  for (const std::string& word : given.value.words) text += (text.empty() ? "" : " ") + word;
  return printable(text, 200);
}

bool accepted(const Given& given) {
  if (given.row->kind == FlagKind::toggle) return given.row->value == (given.value.on ? "on" : "off");
  return std::ranges::all_of(given.value.words, [&](const std::string& word) {
    const auto values = split(given.row->value, '|');
    return std::ranges::find(values, std::string_view(word)) != values.end();
  });
}

FlagReport apply(ServeFlags& flags, const Given& given) {
  const FlagRow& row = *given.row;
  FlagReport report{.flag = given.name, .value = shown_value(given), .fate = FlagFate::works, .message = ""};
  if (given.none) return report;
  const bool off = row.kind == FlagKind::toggle && !given.value.on;
  switch (row.fate) {
    case FlagFate::works: {
      if (row.set == nullptr) {
        // What is always so cannot be switched off.
        if (off)
          report = {given.name, "false", FlagFate::warned, "it cannot be switched off: " + std::string(row.text)};
        break;
      }
      const size_t before = flags.warnings.size();
      if (const Status status = row.set(flags, given.value); !status) {
        report.fate = FlagFate::refused;
        report.message = status.error().message;
      } else if (flags.warnings.size() > before) {
        report.fate = FlagFate::warned;
        report.message = flags.warnings.back();
        flags.warnings.resize(before);
      }
      break;
    }
    case FlagFate::only:
      if (accepted(given)) break;
      report.fate = FlagFate::refused;
      report.message = std::string(row.text) + " (accepted: " + std::string(row.value) + ")";
      break;
    case FlagFate::warned:
      if (off) break;  // to leave off what is not there is fine
      report.fate = FlagFate::warned;
      report.message = "has no effect: " + std::string(row.text);
      break;
    case FlagFate::refused:
      report.fate = FlagFate::refused;
      report.message = "is not built: " + std::string(row.text);
      break;
  }
  return report;
}

bool was_given(const std::vector<Given>& given, std::string_view name) {
  return std::ranges::any_of(given,
                             [&](const Given& g) { return !g.none && split(g.row->names, ' ').front() == name; });
}

void refuse(ServeLine& line, std::string flag, std::string value, std::string message) {
  line.reports.push_back({std::move(flag), std::move(value), FlagFate::refused, std::move(message)});
}

// Whoever asks for a client's certificate or for ciphers must not get plain HTTP.
void refuse_without_certificate(ServeLine& line, const std::vector<Given>& given) {
  const TlsOptions& tls = line.flags.serve.http.tls;
  if (!tls.key_file.empty() || !tls.certificate_file.empty()) return;
  const std::pair<std::string_view, bool> kAsked[] = {{"--ssl-ca-certs", !tls.ca_file.empty()},
                                                      {"--ssl-cert-reqs", tls.client_certificates != 0},
                                                      {"--ssl-ciphers", !tls.ciphers.empty()},
                                                      {"--enable-ssl-refresh", tls.reload}};
  for (const auto& [name, asked] : kAsked) {
    if (!asked || !was_given(given, name)) continue;
    refuse(line, std::string(name), "",
           "needs --ssl-keyfile and --ssl-certfile: without them the server would speak plain HTTP");
  }
}

// What --uds "$UNSET" becomes would change who can reach the server, and whether with a key.
void refuse_empty(ServeLine& line, const std::vector<Given>& given) {
  constexpr std::string_view kNames[] = {"--uds", "--api-key-file", "--ssl-keyfile", "--ssl-certfile",
                                         "--ssl-ca-certs"};
  for (const Given& one : given) {
    const bool guards = std::ranges::find(kNames, split(one.row->names, ' ').front()) != std::end(kNames);
    if (guards && one.none && one.value.text().empty()) {
      refuse(line, one.name, "", "is empty; name a file, or leave the flag out");
    }
  }
}

// What flags say together.
void settle(ServeLine& line, const std::vector<Given>& given) {
  ServeFlags& f = line.flags;
  EngineOptions& e = f.engine;
  if (!was_given(given, "--max-num-batched-tokens")) {
    e.max_num_batched_tokens = std::max(e.max_num_batched_tokens, e.max_num_seqs);
  }
  if (f.token_cap) e.max_num_batched_tokens = std::min(e.max_num_batched_tokens, *f.token_cap);
  if (e.max_num_batched_tokens < e.max_num_seqs) {
    refuse(line, "--max-num-batched-tokens", std::to_string(e.max_num_batched_tokens),
           "is less than --max-num-seqs " + std::to_string(e.max_num_seqs) +
               ", so that not all could run; give at least that");
  }
  if (e.max_model_len > 0 && e.long_prefill_token_threshold > e.max_model_len) {
    refuse(line, "--long-prefill-token-threshold", std::to_string(e.long_prefill_token_threshold),
           "is more than --max-model-len " + std::to_string(e.max_model_len));
  }
  const TlsOptions& tls = f.serve.http.tls;
  if (tls.key_file.empty() != tls.certificate_file.empty()) {
    refuse(line, tls.key_file.empty() ? "--ssl-certfile" : "--ssl-keyfile", "",
           "needs the other one, too: HTTPS takes --ssl-keyfile and --ssl-certfile");
  }
  refuse_without_certificate(line, given);
  refuse_empty(line, given);
  if (f.serve.fingerprint_mode == FingerprintMode::custom && f.serve.custom_fingerprint.empty()) {
    refuse(line, "--fingerprint-mode", "custom", "needs the text to show: give --fingerprint-value");
  }
  if (const Result<SamplingDefaults> defaults = parse_sampling_defaults(f.override_generation_config); !defaults) {
    refuse(line, "--override-generation-config", "", defaults.error().message);
  }
  if (f.serve.auto_tool_choice && f.serve.tool_call_parser.empty()) f.serve.tool_call_parser = "auto";
  // Lines that nobody sees are not made.
  f.serve.access_log = f.serve.access_log && std::max(f.log_level, f.http_log_level) <= LogLevel::info;
  if (f.serve.kv_cache_metrics) e.kv_life_sample = f.serve.kv_cache_metrics_sample;
  f.serve.cache_config = {.gpu_memory_utilization = f.memory.utilization,
                          .kv_cache_memory_bytes = f.memory.kv_bytes,
                          .num_gpu_blocks_override = f.memory.blocks,
                          .user_specified_block_size = f.block_size_given};
  e.record_kv_events = f.serve.kv_events.enabled;
}

std::string underscored(std::string_view name) {
  std::string text(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  std::ranges::replace(text, '-', '_');
  return text;
}

}  // namespace

std::span<const FlagGroup> flag_groups() {
  static const FlagGroup kGroups[] = {
      {"model", "Model and tokenizer", model_flags()},
      {"cache", "KV cache", cache_flags()},
      {"scheduler", "Scheduler", scheduler_flags()},
      {"frontend", "HTTP front end", frontend_flags()},
      {"observability", "Metrics and log", observability_flags()},
      {"events", "KV events and transfer", events_flags()},
      {"kvarto", "Kvarto's own", kvarto_flags()},
      {"load", "Weights", weight_flags()},
      {"parallel", "Devices and parallelism", parallel_flags()},
      {"features", "Adapters, images, speculation", feature_flags()},
      {"llama", "llama-server's", llama_flags()},
      {"removed", "Dropped by vLLM", removed_flags()},
  };
  return kGroups;
}

const FlagRow* flag_row(const std::string& name) {
  const std::optional<Found> found = find_flag(name);
  return found ? found->row : nullptr;
}

Result<ServeLine> read_serve_line(const std::vector<std::string>& words, Environment environment,
                                  std::string_view examples) {
  ServeLine line;
  LineReader typed(line);
  RETURN_IF_ERROR(typed.read(words));
  if (typed.topic()) {
    ASSIGN_OR_RETURN(line.help, serve_help(*typed.topic(), examples));
    return line;
  }
  LineReader reader(line);
  if (!typed.config().empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> entries, read_config_file(typed.config()));
    const Status read = reader.read(entries);
    if (!read) return fail(read.error().code, kvarto::quoted(typed.config()) + ": " + read.error().message);
  }
  RETURN_IF_ERROR(reader.read(words));  // over those of the file

  ServeFlags& flags = line.flags;
  read_environment(environment, flags, line.reports);
  for (const Given& given : reader.given()) {
    line.reports.push_back(apply(flags, given));
    if (!given.none) flags.given.emplace_back(underscored(given.name), shown_value(given));
  }
  if (typed.model()) flags.model = *typed.model();
  if (flags.serve.api_keys.empty()) read_key_variable(environment, flags, line.reports);
  settle(line, reader.given());
  if (flags.model.empty() && !line.check) {
    refuse(line, "MODEL", "",
           "is missing; name one behind `kvarto serve` (a flag such as --api-key takes every word up to the next flag, "
           "so put MODEL first)");
  }
  if (flags.serve.served_model_names.empty()) flags.serve.served_model_names = {flags.model};
  for (const FlagReport& report : line.reports) {
    if (report.fate == FlagFate::warned) flags.warnings.push_back(report.flag + " " + report.message);
  }
  return line;
}

Status first_refusal(const ServeLine& line) {
  for (const FlagReport& report : line.reports) {
    if (report.fate != FlagFate::refused) continue;
    return fail(ErrorCode::invalid_argument,
                report.flag + (report.value.empty() ? " " : " " + report.value + ": ") + report.message);
  }
  return {};
}

}  // namespace kvarto
