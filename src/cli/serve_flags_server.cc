// Flags that say how requests come in and what is told about them: HTTP front end, metrics, log, KV events.
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/serve_values.h"
#include "server/metrics.h"
#include "server/reasoning_parser.h"
#include "server/tool_parser.h"
#include "text/json_text.h"

namespace kvarto {
namespace {

using enum FlagKind;
using enum FlagFate;
using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

Status set_seconds(milliseconds& target, const FlagValue& value, double most = 1e6) {
  double seconds = 0;
  RETURN_IF_ERROR(set_number(seconds, value, 0, most));
  target = milliseconds(static_cast<int64_t>(seconds * 1000));
  return {};
}

Result<Json> json_object(const FlagValue& value) {
  Result<Json> parsed = parse_json(value.text());
  if (!parsed) return fail(parsed.error().code, parsed.error().message + "; give a JSON object");
  if (!parsed->is_object()) return bad_value(value, "a JSON object");
  return parsed;
}

// A JSON array of strings, as vLLM takes it.
Status set_strings(std::vector<std::string>& target, const FlagValue& value) {
  constexpr const char* kRemedy = "a JSON array of strings, such as '[\"*\"]'";
  if (value.words.size() > 1) return fail(ErrorCode::invalid_argument, std::string("is not ") + kRemedy);
  const Result<Json> parsed = parse_json(value.text());
  if (!parsed || !parsed->is_array()) return bad_value(value, kRemedy);
  std::vector<std::string> strings;
  for (const Json& one : *parsed) {
    if (!one.is_string()) return bad_value(value, kRemedy);
    strings.push_back(one.get<std::string>());
  }
  target = std::move(strings);
  return {};
}

// --- KV events

Status wrong_key(const std::string& key, const Json& given, const char* wanted) {
  return fail(ErrorCode::invalid_argument, key + " " + printable(given.dump()) + " is not " + wanted);
}

Status read_text(const std::string& key, const Json& given, std::string& target) {
  if (given.is_null()) return {};
  if (!given.is_string()) return wrong_key(key, given, "a string");
  target = given.get<std::string>();
  return {};
}

// ZeroMQ takes the port's last 16 bits, and of "55x" the 55.
Status read_endpoint(const std::string& key, const Json& given, std::string& target) {
  RETURN_IF_ERROR(read_text(key, given, target));
  if (!target.starts_with("tcp://")) return {};
  const std::string port = target.substr(target.rfind(':') + 1);
  uint16_t number = 0;
  if (port == "*" || set_count(number, {.words = {port}})) return {};
  return fail(ErrorCode::invalid_argument, key + " " + kvarto::quoted(target) + " has no port from 0 to 65535; " +
                                               "write one, such as tcp://*:5557");
}

Status read_switch(const std::string& key, const Json& given, bool& target) {
  if (!given.is_boolean()) return wrong_key(key, given, "true or false");
  target = given.get<bool>();
  return {};
}

Status read_size(const std::string& key, const Json& given, uint32_t& target) {
  if (!given.is_number_unsigned() || given.get<uint64_t>() > 100'000'000) {
    return wrong_key(key, given, "a whole number from 0 to 100000000");
  }
  target = given.get<uint32_t>();
  return {};
}

Status read_event_key(const std::string& key, const Json& given, KvEventsOptions& o) {
  if (key == "enable_kv_cache_events") return read_switch(key, given, o.enabled);
  if (key == "publisher") return read_text(key, given, o.publisher);
  if (key == "endpoint") return read_endpoint(key, given, o.endpoint);
  if (key == "replay_endpoint") return read_endpoint(key, given, o.replay_endpoint);
  if (key == "topic") return read_text(key, given, o.topic);
  if (key == "buffer_steps") return read_size(key, given, o.buffer_steps);
  if (key == "hwm") return read_size(key, given, o.high_water_mark);
  if (key == "max_queue_size") return read_size(key, given, o.max_queue_size);
  if (key == "full_hashes") return read_switch(key, given, o.full_hashes);
  if (key == "encoding") {
    if (given != "map" && given != "array") return wrong_key(key, given, "\"map\" or \"array\" (vLLM before 0.24)");
    o.array_encoding = given == "array";
    return {};
  }
  return fail(ErrorCode::invalid_argument,
              "key " + kvarto::quoted(key) +
                  " is not known; there are enable_kv_cache_events, publisher, endpoint, replay_endpoint, topic, "
                  "buffer_steps, hwm, max_queue_size, encoding, full_hashes");
}

Status set_kv_events(ServeFlags& flags, const FlagValue& value) {
  ASSIGN_OR_RETURN(const Json object, json_object(value));
  KvEventsOptions options = flags.serve.kv_events;
  for (const auto& [key, given] : object.items()) RETURN_IF_ERROR(read_event_key(key, given, options));
  if (options.publisher.empty()) options.publisher = options.enabled ? "zmq" : "null";
  if (options.publisher != "zmq" && options.publisher != "null") {
    return fail(ErrorCode::invalid_argument,
                "publisher " + kvarto::quoted(options.publisher) + " is not known; there is zmq");
  }
  if (options.publisher == "null") options.enabled = false;
  flags.serve.kv_events = options;
  flags.engine.record_kv_events = options.enabled;
  return {};
}

Status set_kv_transfer(ServeFlags&, const FlagValue& value) {
  ASSIGN_OR_RETURN(const Json object, json_object(value));
  if (!object.contains("kv_connector") || object["kv_connector"].is_null()) return {};
  return fail(ErrorCode::unsupported, "kv_connector " + printable(object["kv_connector"].dump()) +
                                          ": a second tier of KV memory and sharing among servers are not built yet; "
                                          "leave the flag out");
}

constexpr FlagRow kEvents[] = {
    {"--kv-events-config", json, works, "JSON",
     "Block events over ZeroMQ: {\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:5557\", "
     "\"replay_endpoint\": "
     "..., \"topic\": \"\", \"buffer_steps\": 10000, \"hwm\": 100000, \"max_queue_size\": 100000}, and of our own "
     "\"encoding\": \"map\" or \"array\" (vLLM before 0.24) and \"full_hashes\": false",
     set_kv_events},
    {"--kv-transfer-config", json, works, "JSON", "Accepted without a connector; those are refused by name",
     set_kv_transfer},
    {"--ec-transfer-config", json, refused, "JSON", "there is no encoder; leave it out"},
};

// --- observability

Status set_level(ServeFlags& flags, const FlagValue& value) {
  std::string name = value.text();
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  ASSIGN_OR_RETURN(const size_t at,
                   choice({.words = {name}}, {"debug", "info", "warning", "error", "critical", "off"}));
  constexpr LogLevel kLevels[] = {LogLevel::debug, LogLevel::info,  LogLevel::warning,
                                  LogLevel::error, LogLevel::error, LogLevel::off};
  flags.log_level = kLevels[at];
  return {};
}

Status set_buckets(ServeFlags& flags, const FlagValue& value) {
  ASSIGN_OR_RETURN(const Json object, json_object(value));
  std::map<std::string, std::vector<double>> buckets;
  for (const auto& [family, bounds] : object.items()) {
    if (!bounds.is_array()) return wrong_key(family, bounds, "an array of numbers");
    for (const Json& bound : bounds) {
      if (!bound.is_number()) return wrong_key(family, bounds, "an array of numbers");
      buckets[family].push_back(bound.get<double>());
    }
  }
  RETURN_IF_ERROR(check_histogram_buckets(buckets));
  flags.serve.histogram_buckets = std::move(buckets);
  return {};
}

constexpr FlagRow kObservability[] = {
    {"--disable-log-stats", toggle, works, "", "No line of figures every 10 s; /metrics stays",
     KVARTO_SET(f.serve.log_stats_interval_s = v.on ? 0 : 10; return {};)},
    {"--aggregate-engine-logging", toggle, works, "", "Always so: there is one engine"},
    {"--show-hidden-metrics-for-version", value, works, "X.Y",
     "Also names that vLLM has dropped (vllm:gpu_cache_usage_perc ...)",
     KVARTO_SET(f.serve.hidden_gpu_metrics = !v.text().empty(); return {};)},
    {"--kv-cache-metrics", toggle, works, "", "Histograms of how long blocks live and lie idle",
     KVARTO_SET(return set_on(f.serve.kv_cache_metrics, v);)},
    {"--kv-cache-metrics-sample", value, works, "SHARE", "Share of the blocks that they follow (0.01)",
     KVARTO_SET(return set_number(f.serve.kv_cache_metrics_sample, v, 0, 1, true);)},
    {"--custom-histogram-buckets", json, works, "JSON", "Bounds of histograms, by family", set_buckets},
    {"--enable-logging-iteration-details", toggle, warned, "", "/metrics has what a step did"},
    {"--enable-mfu-metrics --cudagraph-metrics", toggle, warned, "", "there is no GPU to tell about"},
    {"--enable-log-requests", toggle, works, "", "One line also when a request arrives; never its text",
     KVARTO_SET(return set_on(f.serve.log_requests, v);)},
    {"--disable-log-requests", toggle, works, "", "The default", KVARTO_SET(return set_off(f.serve.log_requests, v);)},
    {"--otlp-traces-endpoint", value, refused, "URL",
     "traces are not built; the log has a line a request with its times"},
    {"--collect-detailed-traces", list, refused, "X", "traces are not built; /metrics has the times of every stage"},
    {"--log-level", value, works, "LEVEL", "debug, info (default), warning, error, off", set_level},
    {"--shutdown-timeout", value, works, "SECONDS",
     "How long running requests may go on after SIGTERM or Ctrl-C (0: they end at once); a second signal ends "
     "everything",
     KVARTO_SET(return set_number(f.serve.shutdown_timeout_s, v, 0, 1e6);)},
};

// --- HTTP

// A file's text, or the text itself.
Status set_chat_template(ServeFlags& flags, const FlagValue& value) {
  const std::string& text = value.text();
  if (text.find("{{") != std::string::npos || text.find("{%") != std::string::npos) {
    return set_text(flags.serve.chat_template, value);
  }
  const Result<std::string> file = read_file(text, 4 << 20);
  if (!file) return fail(file.error().code, file.error().message + "; give a file, or the Jinja text itself");
  flags.serve.chat_template = *file;
  return {};
}

Status add_keys(ServeFlags& flags, const std::string& text, char separator) {
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    std::string key = text.substr(at, end - at);
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    if (!key.empty() && !(separator == '\n' && key.front() == '#')) flags.serve.api_keys.push_back(std::move(key));
    at = end + 1;
  }
  return {};
}

Status set_keys(ServeFlags& flags, const FlagValue& value) {
  for (const std::string& key : value.words) {
    RETURN_IF_ERROR(check_api_key(key));
    RETURN_IF_ERROR(add_keys(flags, key, '\0'));
  }
  return {};
}

Status set_key_file(ServeFlags& flags, const FlagValue& value) {
  ASSIGN_OR_RETURN(const std::string text, read_file(value.text(), 1 << 20));
  const size_t before = flags.serve.api_keys.size();
  RETURN_IF_ERROR(add_keys(flags, text, '\n'));
  if (flags.serve.api_keys.size() == before) return bad_value(value, "a file with an API key a line: it has none");
  for (size_t i = before; i < flags.serve.api_keys.size(); ++i) RETURN_IF_ERROR(check_api_key(flags.serve.api_keys[i]));
  return {};
}

Status set_tool_parser(ServeFlags& flags, const FlagValue& value) {
  if (value.text() != "auto") RETURN_IF_ERROR(find_tool_format(value.text(), "").map([](auto) {}));
  return set_text(flags.serve.tool_call_parser, value);
}

Status set_reasoning_parser(ServeFlags& flags, const FlagValue& value) {
  RETURN_IF_ERROR(find_reasoning_format(value.text()).map([](auto) {}));
  return set_text(flags.serve.reasoning_parser, value);
}

// uvicorn's levels.
Status set_http_level(ServeFlags& flags, const FlagValue& value) {
  ASSIGN_OR_RETURN(const size_t at, choice(value, {"trace", "debug", "info", "warning", "error", "critical"}));
  flags.http_log_level = at <= 2 ? LogLevel::info : LogLevel::warning;
  return {};
}

// "/health,/metrics"
Status set_paths(std::vector<std::string>& target, const FlagValue& value) {
  std::vector<std::string> paths;
  const std::string& text = value.text();
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string path = text.substr(at, end - at);
    path.erase(0, std::min(path.find_first_not_of(' '), path.size()));
    path.erase(path.find_last_not_of(' ') + 1);
    if (!path.empty() && path.front() != '/') return bad_value(value, "a list of paths, such as /health,/metrics");
    if (!path.empty()) paths.push_back(std::move(path));
    at = end + 1;
  }
  target = std::move(paths);
  return {};
}

constexpr FlagRow kFrontend[] = {
    {"--host", value, works, "ADDRESS", "Address to listen at (127.0.0.1; vLLM listens everywhere: --host 0.0.0.0)",
     KVARTO_SET(return set_text(f.serve.http.host, v);)},
    {"--port", value, works, "N", "Port (8000); 0: any that is free",
     KVARTO_SET(return set_count(f.serve.http.port, v);)},
    {"--uds", value, works, "PATH", "Unix socket to listen at instead",
     KVARTO_SET(return set_text(f.serve.http.unix_socket, v);)},
    {"--api-key", list, works, "KEY ...", "Keys of which a request needs one, on every route but /health and /ping",
     set_keys, true, true},
    {"--api-key-file", value, works, "FILE", "More keys, one a line", set_key_file},
    {"--ssl-keyfile --ssl-key-file", value, works, "FILE", "Private key (PEM): HTTPS, together with --ssl-certfile",
     KVARTO_SET(return set_text(f.serve.http.tls.key_file, v);)},
    {"--ssl-certfile --ssl-cert-file", value, works, "FILE", "Certificate (PEM)",
     KVARTO_SET(return set_text(f.serve.http.tls.certificate_file, v);)},
    {"--ssl-ca-certs", value, works, "FILE", "Whom client certificates must come from",
     KVARTO_SET(return set_text(f.serve.http.tls.ca_file, v);)},
    {"--ssl-cert-reqs", value, works, "0|1|2", "Client certificates: none, optional, required (0)",
     KVARTO_SET(return set_count(f.serve.http.tls.client_certificates, v, 0, 2);)},
    {"--ssl-ciphers", value, works, "LIST", "OpenSSL's list, for TLS up to 1.2",
     KVARTO_SET(return set_text(f.serve.http.tls.ciphers, v);)},
    {"--enable-ssl-refresh", toggle, works, "", "New connections use changed certificate files",
     KVARTO_SET(return set_on(f.serve.http.tls.reload, v);)},
    {"--root-path --api-prefix", value, works, "PREFIX", "Path prefix to strip behind a proxy",
     KVARTO_SET(if (!v.text().starts_with('/')) return bad_value(v, "a path: it begins with a slash, such as /llm");
                return set_text(f.serve.root_path, v);)},
    {"--allow-credentials", toggle, works, "", "CORS", KVARTO_SET(return set_on(f.serve.cors.allow_credentials, v);)},
    {"--allowed-origins", list, works, "JSON", "CORS: origins that browsers may call from ([]; [\"*\"]: any)",
     KVARTO_SET(return set_strings(f.serve.cors.origins, v);)},
    {"--allowed-hosts", list, works, "JSON",
     "Names by which browsers may reach the dashboard and a server without keys, beside the bound address ([]; "
     "[\"*\"]: any)",
     KVARTO_SET(return set_strings(f.serve.allowed_hosts, v);)},
    {"--allowed-methods", list, works, "JSON", "CORS ([\"*\"])",
     KVARTO_SET(return set_strings(f.serve.cors.methods, v);)},
    {"--allowed-headers", list, works, "JSON", "CORS ([\"*\"])",
     KVARTO_SET(return set_strings(f.serve.cors.headers, v);)},
    {"--enable-request-id-headers", toggle, works, "", "X-Request-Id in every reply",
     KVARTO_SET(return set_on(f.serve.request_id_headers, v);)},
    {"--uvicorn-log-level", value, works, "LEVEL",
     "trace, debug, info (default): a line per HTTP request; warning, error, critical: none", set_http_level},
    {"--disable-uvicorn-access-log", toggle, works, "", "No line per HTTP request",
     KVARTO_SET(return set_off(f.serve.access_log, v);)},
    {"--disable-access-log-for-endpoints", value, works, "PATH,PATH", "No line for requests of these paths",
     KVARTO_SET(return set_paths(f.serve.access_log_except, v);)},
    {"--log-config-file", value, warned, "FILE", "see --log-level"},
    {"--disable-fastapi-docs", toggle, works, "", "No /openapi.json", KVARTO_SET(return set_off(f.serve.docs, v);)},
    {"--middleware", list, refused, "CLASS", "no foreign code is run; put a proxy in front", nullptr, false, true},
    {"--h11-max-incomplete-event-size", value, works, "BYTES", "Most bytes of a request's head (65536)",
     KVARTO_SET(return set_human<size_t>(f.serve.http.max_header_bytes, v, 1024, 64 << 20);)},
    {"--h11-max-header-count", value, works, "N", "Most headers of a request (256)",
     KVARTO_SET(return set_count<size_t>(f.serve.http.max_headers, v, 8, 65536);)},
    {"--chat-template --chat-template-file", value, works, "FILE|TEXT", "Jinja template instead of the model's own",
     set_chat_template},
    {"--chat-template-content-format", value, works, "auto|string|openai",
     "How contents of messages reach the template: as it is found to want them (auto), as one text, or as parts",
     KVARTO_SET(ASSIGN_OR_RETURN(const size_t at, choice(v, {"auto", "string", "openai"}));
                f.serve.content_format = static_cast<ContentFormat>(at); return {};)},
    {"--trust-request-chat-template", toggle, works, "", "Requests may bring a chat_template",
     KVARTO_SET(return set_on(f.serve.trust_request_chat_template, v);)},
    {"--trust-request-mm-kwargs", toggle, warned, "", "there is no multi-modal input"},
    {"--default-chat-template-kwargs", json, works, "JSON",
     "Variables of the chat template, under those of the request",
     KVARTO_SET(RETURN_IF_ERROR(json_object(v).map([](auto) {}));
                return set_text(f.serve.default_chat_template_kwargs, v);)},
    {"--response-role", value, works, "ROLE", "Role of answers (assistant)",
     KVARTO_SET(return set_text(f.serve.response_role, v);)},
    {"--return-tokens-as-token-ids", toggle, works, "", "Tokens of logprobs are shown as token_id:N",
     KVARTO_SET(return set_on(f.serve.return_tokens_as_token_ids, v);)},
    {"--enable-auto-tool-choice", toggle, works, "", "Tool calls are parsed from answers",
     KVARTO_SET(return set_on(f.serve.auto_tool_choice, v);)},
    {"--tool-call-parser", value, works, "NAME", "hermes, llama3_json, mistral, or auto: as the chat template shows",
     set_tool_parser},
    {"--tool-parser-plugin --reasoning-parser-plugin", value, refused, "FILE", "no foreign code is run"},
    {"--exclude-tools-when-tool-choice-none", toggle, works, "", "With tool_choice none the template sees no tools",
     KVARTO_SET(return set_on(f.serve.exclude_tools_when_none, v);)},
    {"--reasoning-parser", value, works, "NAME",
     "Reasoning is split off the answer; a wrong name is told which there are", set_reasoning_parser},
    {"--enable-prompt-tokens-details", toggle, works, "", "Always so"},
    {"--enable-per-request-metrics", toggle, works, "", "Replies have a `metrics` object",
     KVARTO_SET(return set_on(f.serve.per_request_metrics, v);)},
    {"--enable-server-load-tracking", toggle, works, "", "/load tells the number of requests",
     KVARTO_SET(return set_on(f.serve.load_tracking, v);)},
    {"--enable-force-include-usage", toggle, works, "", "Usage in every stream",
     KVARTO_SET(return set_on(f.serve.force_include_usage, v);)},
    {"--sse-keep-alive-interval --sse-ping-interval", value, works, "SECONDS",
     "A comment line in streams that are silent for so long (0: never)",
     KVARTO_SET(if (v.text() == "-1") return {}; return set_number(f.serve.sse_keep_alive_s, v, 0, 1e6);)},
    {"--enable-tokenizer-info-endpoint", toggle, warned, "",
     "there is no /tokenizer_info; see /tokenize and /v1/models"},
    {"--enable-log-outputs", toggle, warned, "", "texts of requests and answers are never logged"},
    {"--enable-log-deltas", toggle, warned, "", "texts of requests and answers are never logged"},
    {"--max-log-len", value, warned, "N", "texts of requests and answers are never logged"},
    {"--log-error-stack", toggle, warned, "", "an error is one line that says what to do"},
    {"--fingerprint-mode", value, works, "full|hash|custom|none",
     "system_fingerprint of replies: version and model's file (full, hash), --fingerprint-value (custom), or null",
     KVARTO_SET(ASSIGN_OR_RETURN(const size_t at, choice(v, {"full", "hash", "custom", "none"}));
                f.serve.fingerprint_mode = static_cast<FingerprintMode>(at); return {};)},
    {"--fingerprint-value", value, works, "TEXT", "What --fingerprint-mode custom shows",
     KVARTO_SET(return set_text(f.serve.custom_fingerprint, v);)},
    {"--api-server-count -asc", value, only, "1", "one front thread serves thousands of streams"},
    {"--headless", toggle, only, "off", "this process is the server"},
    {"--grpc", toggle, only, "off", "HTTP is what there is"},
};

// --- our own

constexpr FlagRow kKvarto[] = {
    {"--threads -t", value, works, "N", "Compute threads (0: one per physical core that may be used)",
     KVARTO_SET(if (v.text() == "-1") return {}; return set_count(f.engine.threads, v, 0, 1024);)},
    {"--max-step-ms", value, works, "MS",
     "Longest step while anything decodes (0: 2.8x a slow one of those that only decode)",
     KVARTO_SET(return set_number(f.engine.max_step_ms, v, 0, 1e9);)},
    {"--priority-aging-ms", value, works, "MS",
     "A waiting request counts as one more important for every so many (10000; 0: never)",
     KVARTO_SET(return set_count(f.engine.priority_aging_ms, v);)},
    {"--reference", toggle, works, "", "Compute in float32 from dequantised weights: slow, the yardstick",
     KVARTO_SET(return set_on(f.engine.reference, v);)},
    {"--public-metrics", toggle, works, "", "/metrics needs no API key",
     KVARTO_SET(return set_on(f.serve.public_metrics, v);)},
    {"--salt-from-api-key", toggle, works, "", "Cached blocks are shared among requests with the same API key only",
     KVARTO_SET(return set_on(f.serve.salt_from_api_key, v);)},
    {"--sort-tool-keys", toggle, works, "",
     "Keys of tools' schemas are sorted before they are rendered, so that clients which spell the same tools in other "
     "orders share their prefix (off: as the client wrote them)",
     KVARTO_SET(return set_on(f.serve.sort_tool_keys, v);)},
    {"--strict-fields", toggle, works, "", "Unknown fields of requests are refused, not ignored",
     KVARTO_SET(return set_on(f.serve.strict_fields, v);)},
    {"--max-turns-kept", value, works, "N", "Finished turns whose token ids are kept for the next one (4096)",
     KVARTO_SET(return set_count(f.serve.max_turns_kept, v);)},
    {"--volatile-text", value, works, "FILE",
     "Rules (move REGEX, drop REGEX) for changing lines of system prompts, so that what follows is found in the cache",
     KVARTO_SET(return set_text(f.serve.volatile_text, v);)},
    {"--record", value, works, "FILE",
     "Appends a line per finished request: arrival, lengths and salted block ids, no text; `kvarto bench serve "
     "--trace` "
     "reads it",
     KVARTO_SET(return set_text(f.serve.record, v);)},
    {"--dashboard-text", toggle, works, "", "The dashboard may show prompts, to whoever has a valid key",
     KVARTO_SET(return set_on(f.serve.dashboard_text, v);)},
    {"--max-body-bytes", value, works, "BYTES", "Longest request body (32M)",
     KVARTO_SET(return set_human<size_t>(f.serve.http.max_body_bytes, v, 1024, size_t{1} << 30);)},
    {"--max-connections", value, works, "N", "Most open connections (4096)",
     KVARTO_SET(return set_count<uint32_t>(f.serve.http.max_connections, v, 1, 1u << 20);)},
    {"--write-timeout --timeout -to", value, works, "SECONDS",
     "A client that reads nothing for so long is dropped (60)",
     KVARTO_SET(return set_seconds(f.serve.http.write_limit, v);)},
};

}  // namespace

std::span<const FlagRow> events_flags() { return kEvents; }
std::span<const FlagRow> observability_flags() { return kObservability; }
std::span<const FlagRow> frontend_flags() { return kFrontend; }
std::span<const FlagRow> kvarto_flags() { return kKvarto; }

}  // namespace kvarto
