// What `kvarto serve` was asked for beside the engine's own options. Plain data; the command line fills it
// (cli/serve.cc).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "http/server.h"
#include "kvarto/engine.h"
#include "server/health.h"
#include "server/text_thread.h"

namespace kvarto {

struct CorsOptions {
  bool allow_credentials = false;
  std::vector<std::string> origins = {}, methods = {"*"}, headers = {"*"};
};

struct KvEventsOptions {  // vLLM's --kv-events-config
  bool enabled = false;
  std::string publisher;  // "zmq" when enabled; "null": none
  std::string endpoint = "tcp://*:5557", replay_endpoint, topic;
  uint32_t buffer_steps = 10'000, high_water_mark = 100'000, max_queue_size = 100'000;
  bool array_encoding = false;  // the form of vLLM before 0.24
  bool full_hashes = false;     // 32-byte hashes instead of 64-bit integers
};

// What the operator said about the KV cache, as vllm:cache_config_info tells it.
struct CacheConfigOptions {
  std::optional<double> gpu_memory_utilization = {};
  std::optional<size_t> kv_cache_memory_bytes = {};
  std::optional<uint64_t> num_gpu_blocks_override = {};
  bool user_specified_block_size = false;
};

// vLLM's --fingerprint-mode: what system_fingerprint of replies tells. Nothing here is split over devices, which is all
// that its `hash` leaves out of `full`.
enum class FingerprintMode : uint8_t { full, hash, custom, none };

struct ServeOptions {
  HttpServerOptions http;
  CorsOptions cors;
  std::vector<std::string> allowed_hosts;       // names for the dashboard, beside the bound address; "*": any
  std::vector<std::string> served_model_names;  // the first one is echoed; never empty once the server starts
  std::string model_path;                       // "root" of /v1/models
  std::vector<std::string> api_keys;            // empty: no key needed
  bool public_metrics = false;                  // /metrics needs no key
  std::string root_path;                        // prefix stripped behind a proxy
  bool request_id_headers = false;
  bool docs = true;  // /openapi.json
  bool dev_mode = false;

  // --- requests
  bool any_model_name = false;  // whatever `model` says is answered
  uint32_t max_n = 16'384;      // never more than the engine runs at once
  uint32_t max_prompts = 1024;  // of one completions call
  uint32_t max_stop_strings = 4;
  uint32_t max_logprobs = 20;  // UINT32_MAX: no cap
  bool return_tokens_as_token_ids = false;
  std::string response_role = "assistant";
  std::string chat_template;  // text; empty: the model's own
  bool trust_request_chat_template = false;
  ContentFormat content_format = ContentFormat::automatic;
  bool sort_tool_keys = false;               // of the schemas of tools, before they are rendered
  std::string default_chat_template_kwargs;  // JSON object; empty: none
  std::string generation_config;             // JSON object with defaults of sampling values; empty: none
  bool auto_tool_choice = false;
  bool exclude_tools_when_none = false;            // with tool_choice none the template sees no tools
  std::string tool_call_parser, reasoning_parser;  // empty: none
  bool strict_fields = false;
  bool salt_from_api_key = false;
  bool force_include_usage = false;
  bool per_request_metrics = false;  // the `metrics` object of replies
  FingerprintMode fingerprint_mode = FingerprintMode::full;
  std::string custom_fingerprint;
  std::string volatile_text;           // file of rules; see volatile_text.h
  uint32_t max_num_queued_reqs = 0;    // 0: no limit
  uint64_t max_num_queued_tokens = 0;  // 0: no limit
  uint32_t max_turns_kept = 4096;      // finished turns whose ids are kept for reuse

  // --- running
  uint32_t stream_interval = 1;
  double sse_keep_alive_s = 0;  // 0: off
  double shutdown_timeout_s = 0;
  double log_stats_interval_s = 10;            // 0: no line
  bool log_requests = false;                   // one line also when a request arrives
  bool access_log = true;                      // a line per HTTP request
  std::vector<std::string> access_log_except;  // paths that have none
  std::string record;                          // file of a trace, see trace_recorder.h; empty: none
  bool dashboard_text = false;
  bool load_tracking = false;
  HealthLimits health;
  TextLimits text_limits, long_text_limits;  // of the thread that reads bodies, and of the one for long ones
  KvEventsOptions kv_events;
  CacheConfigOptions cache_config;
  bool kv_cache_metrics = false;
  double kv_cache_metrics_sample = 0.01;
  std::map<std::string, std::vector<double>> histogram_buckets;  // --custom-histogram-buckets, by family
  bool hidden_gpu_metrics = false;                               // --show-hidden-metrics-for-version
};

}  // namespace kvarto
