#include "cli/serve_flags.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/serve_environment.h"

namespace kvarto {
namespace {

using Words = std::vector<std::string>;

const char* no_variable(const char*) { return nullptr; }

ServeFlags read(const Words& words, Environment environment = no_variable) {
  const Result<ServeLine> line = read_serve_line(words, environment);
  EXPECT_TRUE(line) << line.error().message;
  EXPECT_TRUE(first_refusal(*line)) << first_refusal(*line).error().message;
  return line->flags;
}

std::string refusal(const Words& words) {
  const Result<ServeLine> line = read_serve_line(words, no_variable);
  if (!line) return line.error().message;
  const Status status = first_refusal(*line);
  return status ? "" : status.error().message;
}

TEST(ParseHuman, ReadsWhatVllmReads) {
  EXPECT_EQ(parse_human("25600").value(), 25600u);
  EXPECT_EQ(parse_human("25.6k").value(), 25600u);
  EXPECT_EQ(parse_human("1k").value(), 1000u);
  EXPECT_EQ(parse_human("1K").value(), 1024u);
  EXPECT_EQ(parse_human("2m").value(), 2'000'000u);
  EXPECT_EQ(parse_human("2M").value(), 2'097'152u);
  EXPECT_EQ(parse_human("1.1g").value(), 1'100'000'000u);
  EXPECT_EQ(parse_human("1G").value(), 1'073'741'824u);
  EXPECT_EQ(parse_human("1T").value(), 1'099'511'627'776u);
  for (const char* wrong : {"", "k", "1.5K", "1.5", "-1", "1kk", "1e3", "1 k", "nan", "99999999999999999999"}) {
    EXPECT_FALSE(parse_human(wrong)) << wrong;
  }
}

TEST(ServeFlags, ReachTheirOptions) {
  const ServeFlags f = read({"m.gguf",
                             "--max-model-len",
                             "4K",
                             "--max_num_seqs=8",
                             "--max-num-batched-tokens",
                             "2k",
                             "--block-size",
                             "32",
                             "--kv-cache-memory-bytes",
                             "1g",
                             "--gpu-memory-utilization",
                             "0.5",
                             "--no-enable-prefix-caching",
                             "--seed",
                             "9",
                             "--logprobs-mode",
                             "processed_logits",
                             "--scheduling-policy",
                             "priority",
                             "--watermark",
                             "0.25",
                             "--max-logprobs",
                             "-1",
                             "--port",
                             "81",
                             "--served-model-name",
                             "a",
                             "b",
                             "--shutdown-timeout",
                             "2.5",
                             "--kv-cache-dtype",
                             "half",
                             "--disable-fastapi-docs",
                             "--ssl-keyfile",
                             "k.pem",
                             "--ssl-certfile",
                             "c.pem",
                             "--ssl-cert-reqs",
                             "1"});
  EXPECT_EQ(f.model, "m.gguf");
  EXPECT_EQ(f.engine.max_model_len, 4096u);
  EXPECT_EQ(f.engine.max_num_seqs, 8u);
  EXPECT_EQ(f.engine.max_num_batched_tokens, 2000u);
  EXPECT_EQ(f.engine.block_size, 32u);
  EXPECT_EQ(f.memory.kv_bytes, 1'000'000'000u);
  EXPECT_EQ(f.memory.utilization, 0.5);
  EXPECT_FALSE(f.engine.enable_prefix_caching);
  EXPECT_EQ(f.engine.seed, 9u);
  EXPECT_EQ(f.engine.logprobs_mode, LogprobsMode::processed_logits);
  EXPECT_EQ(f.engine.watermark, 0.25);
  EXPECT_EQ(f.serve.max_logprobs, UINT32_MAX);
  EXPECT_EQ(f.serve.http.port, 81);
  EXPECT_EQ(f.serve.served_model_names, (Words{"a", "b"}));
  EXPECT_EQ(f.serve.shutdown_timeout_s, 2.5);
  EXPECT_EQ(f.engine.k_dtype, KvDtype::f16);
  EXPECT_EQ(f.engine.v_dtype, KvDtype::f16);
  EXPECT_FALSE(f.serve.docs);
  EXPECT_EQ(f.serve.http.tls.client_certificates, 1);
}

TEST(ServeFlags, DefaultsAreTheEngines) {
  const ServeFlags f = read({"m.gguf"});
  EXPECT_EQ(f.engine.max_num_seqs, 64u);
  EXPECT_EQ(f.engine.max_num_batched_tokens, 512u);
  EXPECT_EQ(f.engine.max_model_len, 0u);
  EXPECT_FALSE(f.fit_max_model_len);
  EXPECT_FALSE(f.memory.kv_bytes || f.memory.blocks || f.memory.utilization);
  EXPECT_EQ(f.serve.http.host, "127.0.0.1");
  EXPECT_EQ(f.serve.served_model_names, Words{"m.gguf"});
}

TEST(ServeFlags, ThePositionalModelWinsAndNoneIsNotGiven) {
  EXPECT_EQ(read({"--model", "a", "b"}).model, "b");
  EXPECT_EQ(read({"--model", "a"}).model, "a");
  EXPECT_EQ(read({"m", "--max-model-len", "None", "--seed", ""}).engine.max_model_len, 0u);
  EXPECT_TRUE(read({"m", "--max-model-len", "-1"}).fit_max_model_len);
  EXPECT_FALSE(read({"m", "--max-model-len", "-1", "--max-model-len", "5"}).fit_max_model_len);
}

TEST(ServeFlags, ManySequencesRaiseTheStepUnlessItIsGiven) {
  EXPECT_EQ(read({"m", "--max-num-seqs", "1024"}).engine.max_num_batched_tokens, 1024u);
  EXPECT_NE(refusal({"m", "--max-num-seqs", "1024", "--max-num-batched-tokens", "512"}), "");
  EXPECT_EQ(read({"m", "--max-num-scheduled-tokens", "128"}).engine.max_num_batched_tokens, 128u);
}

TEST(ServeFlags, KeysComeFromEverywhere) {
  const std::string path = testing::TempDir() + "kvarto_serve_keys";
  std::ofstream(path) << "# ours\nthird\r\n\nfourth\n";
  const ServeFlags f = read({"m", "--api-key", "one", "two", "--api-key-file", path});
  EXPECT_EQ(f.serve.api_keys, (Words{"one", "two", "third", "fourth"}));
  EXPECT_EQ(read({"m", "--api-key", "a", "--api-key", "b"}).serve.api_keys, (Words{"a", "b"}));
  std::filesystem::remove(path);
}

TEST(ServeFlags, TheEnvironmentComesBelow) {
  const Environment space = [](const char* name) -> const char* {
    const std::string_view wanted = name;
    if (wanted == "VLLM_CPU_KVCACHE_SPACE") return "4";
    if (wanted == "VLLM_API_KEY") return "secret";
    if (wanted == "VLLM_SERVER_DEV_MODE") return "1";
    if (wanted == "VLLM_HTTP_TIMEOUT_KEEP_ALIVE") return "7";
    if (wanted == "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES") return "0";
    if (wanted == "PYTHONHASHSEED") return "5";
    if (wanted == "VLLM_SKIP_MODEL_NAME_VALIDATION" || wanted == "VLLM_ALLOW_LONG_MAX_MODEL_LEN") return "1";
    if (wanted == "VLLM_MAX_N_SEQUENCES") return "3";
    if (wanted == "VLLM_MAX_COMPLETION_PROMPTS") return "2";
    if (wanted == "VLLM_MAX_STOP_STRINGS") return "9";
    return nullptr;
  };
  const ServeFlags f = read({"m"}, space);
  EXPECT_EQ(f.memory.kv_bytes, size_t{4} << 30);
  EXPECT_EQ(f.serve.api_keys, Words{"secret"});
  EXPECT_TRUE(f.key_variable);
  EXPECT_TRUE(f.serve.dev_mode);
  EXPECT_EQ(f.serve.http.keep_alive_limit.count(), 7000);
  EXPECT_TRUE(f.serve.kv_events.full_hashes);
  EXPECT_TRUE(f.serve.any_model_name && f.engine.beyond_context);
  EXPECT_EQ(f.serve.max_n, 3u);
  EXPECT_EQ(f.serve.max_prompts, 2u);
  EXPECT_EQ(f.serve.max_stop_strings, 9u);
  const ServeFlags plain = read({"m"});
  EXPECT_FALSE(plain.serve.any_model_name || plain.engine.beyond_context);
  EXPECT_EQ(plain.serve.max_stop_strings, 4u);
  const ServeFlags over = read({"m", "--kv-cache-memory-bytes", "64M", "--api-key", "own"}, space);
  EXPECT_EQ(over.memory.kv_bytes, size_t{64} << 20);
  EXPECT_EQ(over.serve.api_keys, Words{"own"});
  EXPECT_FALSE(over.key_variable);
}

TEST(ServeFlags, WhatWasSaidOfTheCacheIsToldAsItWas) {
  const CacheConfigOptions none = read({"m"}).serve.cache_config;
  EXPECT_FALSE(none.gpu_memory_utilization || none.kv_cache_memory_bytes || none.num_gpu_blocks_override ||
               none.user_specified_block_size);
  const CacheConfigOptions all = read({"m", "--gpu-memory-utilization", "0.5", "--kv-cache-memory-bytes", "1g",
                                       "--num-gpu-blocks-override", "7", "--block-size", "16"})
                                     .serve.cache_config;
  EXPECT_EQ(all.gpu_memory_utilization, 0.5);
  EXPECT_EQ(all.kv_cache_memory_bytes, 1'000'000'000u);
  EXPECT_EQ(all.num_gpu_blocks_override, 7u);
  EXPECT_TRUE(all.user_specified_block_size);
}

TEST(ServeFlags, ContentFormats) {
  EXPECT_EQ(read({"m"}).serve.content_format, ContentFormat::automatic);
  EXPECT_EQ(read({"m", "--chat-template-content-format", "string"}).serve.content_format, ContentFormat::string);
  EXPECT_EQ(read({"m", "--chat-template-content-format=openai"}).serve.content_format, ContentFormat::parts);
}

TEST(ServeFlags, TheAccessLogIsOnUntilSomethingSaysOff) {
  const auto on = [](const Words& words) {
    Words all = {"m"};
    all.insert(all.end(), words.begin(), words.end());
    return read(all).serve.access_log;
  };
  EXPECT_TRUE(on({}));
  EXPECT_TRUE(on({"--uvicorn-log-level", "debug"}));
  EXPECT_FALSE(on({"--uvicorn-log-level", "warning"}));
  EXPECT_FALSE(on({"--log-level", "warning"}));
  EXPECT_FALSE(on({"--disable-uvicorn-access-log"}));
  EXPECT_FALSE(on({"--disable-uvicorn-access-log", "--uvicorn-log-level", "info"}));
  EXPECT_TRUE(on({"--no-disable-uvicorn-access-log"}));
  EXPECT_NE(refusal({"m", "--uvicorn-log-level", "loud"}).find("critical"), std::string::npos);
  EXPECT_EQ(read({"m", "--disable-access-log-for-endpoints", "/health, /metrics,"}).serve.access_log_except,
            (Words{"/health", "/metrics"}));
  EXPECT_NE(refusal({"m", "--disable-access-log-for-endpoints", "/health,metrics"}).find("/health,/metrics"),
            std::string::npos);
}

TEST(ServeFlags, KvEventsAreMergedFromKeys) {
  const ServeFlags f =
      read({"m", "--kv-events-config", R"({"enable_kv_cache_events": true, "hwm": 7})", "--kv-events-config.topic", "t",
            "--kv-events-config.replay_endpoint", "tcp://*:5558", "--kv-events-config.encoding=array"});
  EXPECT_TRUE(f.serve.kv_events.enabled);
  EXPECT_TRUE(f.engine.record_kv_events);
  EXPECT_EQ(f.serve.kv_events.publisher, "zmq");
  EXPECT_EQ(f.serve.kv_events.high_water_mark, 7u);
  EXPECT_EQ(f.serve.kv_events.topic, "t");
  EXPECT_EQ(f.serve.kv_events.replay_endpoint, "tcp://*:5558");
  EXPECT_EQ(f.serve.kv_events.buffer_steps, 10'000u);
  EXPECT_TRUE(f.serve.kv_events.array_encoding);
  EXPECT_FALSE(read({"m", "--kv-events-config", R"({"enable_kv_cache_events": true, "publisher": "null"})"})
                   .engine.record_kv_events);
  EXPECT_NE(refusal({"m", "--kv-events-config", "{"}), "");
  EXPECT_NE(refusal({"m", "--kv-events-config.hwm", "many"}).find("hwm"), std::string::npos);
}

TEST(ServeFlags, ErrorsNameTheFlagAndTheRemedy) {
  EXPECT_NE(refusal({"m", "--max-model-length", "5"}).find("--max-model-len"), std::string::npos);
  EXPECT_NE(refusal({"m", "--tensor-parallel-size", "2"}).find("--tensor-parallel-size 2"), std::string::npos);
  EXPECT_NE(refusal({"m", "--tensor-parallel-size", "2"}).find("accepted: 1"), std::string::npos);
  EXPECT_NE(refusal({"m", "--enable-prefix-caching=maybe"}).find("--no-enable-prefix-caching"), std::string::npos);
  EXPECT_NE(refusal({"m", "n"}).find("two models"), std::string::npos);
  EXPECT_NE(refusal({}).find("MODEL is missing"), std::string::npos);
  EXPECT_NE(refusal({"m", "--ssl-keyfile", "k"}).find("--ssl-certfile"), std::string::npos);
}

bool refuses(const Words& words, const std::string& told) {
  Words all = {"m"};
  all.insert(all.end(), words.begin(), words.end());
  return refusal(all).find(told) != std::string::npos;
}

// ZeroMQ would take another port in silence.
TEST(ServeFlags, EndpointsHaveARealPort) {
  for (const char* key : {"endpoint", "replay_endpoint"}) {
    const std::string flag = std::string("--kv-events-config.") + key;
    for (const char* wrong :
         {"tcp://*:99999999", "tcp://127.0.0.1:65537", "tcp://*:65536", "tcp://*:55x", "tcp://host"}) {
      EXPECT_TRUE(refuses({flag, wrong}, key)) << wrong;
      EXPECT_TRUE(refuses({flag, wrong}, "65535")) << wrong;
    }
    for (const char* right : {"tcp://*:65535", "tcp://127.0.0.1:*", "tcp://[::1]:5557", "ipc:///tmp/x", "inproc://x"}) {
      EXPECT_EQ(refusal({"m", flag, right}), "") << right;
    }
  }
}

// What --api-key "$UNSET" becomes must not open a server to everybody.
TEST(ServeFlags, EmptyKeysAreRefused) {
  for (const char* key : {"", " ", "a\nb", "a\r"}) {
    EXPECT_TRUE(refuses({"--api-key", key}, "--api-key")) << key;
    EXPECT_TRUE(refuses({"--api-key", "good", key}, "--api-key")) << key;
  }
  EXPECT_TRUE(refuses({"--api-key-file", ""}, "is empty"));
  EXPECT_EQ(refusal({"m", "--api-key", "hidden", ""}).find("hidden"), std::string::npos);
  const auto fate = [](Environment environment) {
    const Result<ServeLine> line = read_serve_line({"m"}, environment);
    return line && !line->reports.empty() ? line->reports.back().fate : FlagFate::works;
  };
  EXPECT_EQ(fate([](const char* name) { return std::string_view(name) == "VLLM_API_KEY" ? "" : nullptr; }),
            FlagFate::warned);
  EXPECT_EQ(fate([](const char* name) { return std::string_view(name) == "VLLM_API_KEY" ? "a\nb" : nullptr; }),
            FlagFate::refused);
  EXPECT_EQ(fate([](const char* name) { return std::string_view(name) == "VLLM_API_KEY" ? " " : nullptr; }),
            FlagFate::refused);
}

TEST(ServeFlags, WhatNeedsACertificateIsRefusedWithoutOne) {
  for (const Words& words : {Words{"--ssl-cert-reqs", "2"}, Words{"--ssl-ca-certs", "ca"}, Words{"--ssl-ciphers", "X"},
                             Words{"--enable-ssl-refresh"}}) {
    EXPECT_TRUE(refuses(words, words[0] + " needs --ssl-keyfile")) << words[0];
    Words with = {"m", "--ssl-keyfile", "k", "--ssl-certfile", "c"};
    with.insert(with.end(), words.begin(), words.end());
    EXPECT_EQ(refusal(with), "") << words[0];
  }
  EXPECT_EQ(refusal({"m", "--ssl-cert-reqs", "0", "--no-enable-ssl-refresh"}), "");
  for (const char* name : {"--uds", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs"}) {
    EXPECT_TRUE(refuses({name, ""}, "is empty")) << name;
    EXPECT_EQ(refusal({"m", name, "None"}), "") << name;
  }
}

TEST(ServeFlags, ListsThatAreJsonAreReadAsJson) {
  for (const char* name : {"--allowed-origins", "--allowed-methods", "--allowed-headers", "--allowed-hosts"}) {
    for (const char* wrong : {"*", "{}", "[1]", "[", "\"*\""}) {
      EXPECT_TRUE(refuses({name, wrong}, "JSON array")) << wrong;
    }
    EXPECT_TRUE(refuses({name, "[\"a\"]", "[\"b\"]"}, "JSON array"));
    EXPECT_EQ(refusal({"m", name, "[]"}), "");
  }
  EXPECT_EQ(read({"m", "--allowed-origins", R"(["a", "*"])"}).serve.cors.origins, (Words{"a", "*"}));
  EXPECT_TRUE(refuses({"--root-path", "llm"}, "slash"));
}

TEST(ServeFlags, SwitchesOfTheEnvironmentAreZeroOrOne) {
  const auto dev_mode = [](Environment environment) -> std::optional<bool> {
    const Result<ServeLine> line = read_serve_line({"m"}, environment);
    if (!line || !first_refusal(*line)) return std::nullopt;
    return line->flags.serve.dev_mode;
  };
  EXPECT_EQ(dev_mode([](const char* n) { return std::string_view(n) == "VLLM_SERVER_DEV_MODE" ? "banana" : nullptr; }),
            std::nullopt);
  EXPECT_EQ(dev_mode([](const char* n) { return std::string_view(n) == "VLLM_SERVER_DEV_MODE" ? "False" : nullptr; }),
            false);
  EXPECT_EQ(dev_mode([](const char* n) { return std::string_view(n) == "VLLM_SERVER_DEV_MODE" ? "1" : nullptr; }),
            true);
}

TEST(ServeFlags, ConfigFilesHoldPlainValuesOnce) {
  const std::string path = testing::TempDir() + "kvarto_serve_config.yaml";
  const auto with = [&](const std::string& text) {
    std::ofstream(path) << text;
    return refusal({"m", "--config", path});
  };
  EXPECT_NE(with("host: {a: b}\n").find("plain value"), std::string::npos);
  EXPECT_NE(with("port: [1, 2]\n").find("plain value"), std::string::npos);
  EXPECT_NE(with("port: 1\nport: 2\n").find("stands twice"), std::string::npos);
  EXPECT_NE(with("max-num-seqs: 1\nmax_num_seqs: 2\n").find("stands twice"), std::string::npos);
  EXPECT_NE(with("kv-events-config: {topic: a, topic: b}\n").find("stands twice"), std::string::npos);
  std::ofstream(path) << "allowed-origins: [a, \"*\"]\nserved-model-name: [b, c]\n";
  const ServeFlags f = read({"m", "--config", path});
  EXPECT_EQ(f.serve.cors.origins, (Words{"a", "*"}));
  EXPECT_EQ(f.serve.served_model_names, (Words{"b", "c"}));
  std::filesystem::remove(path);
}

TEST(ServeFlags, NothingIsSaidTwice) {
  EXPECT_TRUE(refuses({"--nosuchthing"}, "unknown flag \"--nosuchthing\""));
  EXPECT_TRUE(
      refuses({"--reasoning-parser", "nope"}, "--reasoning-parser nope: reasoning parser \"nope\" is not known"));
  EXPECT_TRUE(
      refuses({"--tool-call-parser", "nope"}, "--tool-call-parser nope: tool call parser \"nope\" is not known"));
}

TEST(ServeFlags, NoNameStandsTwice) {
  std::vector<std::string> names;
  for (const FlagGroup& group : flag_groups()) {
    for (const FlagRow& row : group.rows) {
      std::string_view rest = row.names;
      while (!rest.empty()) {
        const size_t end = std::min(rest.find(' '), rest.size());
        names.emplace_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
      EXPECT_FALSE(row.text.empty() && row.fate != FlagFate::works) << row.names;
    }
  }
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  EXPECT_GT(names.size(), 250u);
}

TEST(ParseCpuList, ReadsRangesAndRefusesOthers) {
  EXPECT_EQ(parse_cpu_list("0-2,8").value(), (std::vector<int>{0, 1, 2, 8}));
  EXPECT_EQ(parse_cpu_list("5").value(), std::vector<int>{5});
  for (const char* wrong : {"", "a", "3-1", "0-", "0,,1", "0-5000", "1;2"})
    EXPECT_FALSE(parse_cpu_list(wrong)) << wrong;
}

}  // namespace
}  // namespace kvarto
