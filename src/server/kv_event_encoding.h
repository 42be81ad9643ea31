// KV events as vLLM writes them, for the routers that read vLLM's. Free functions; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kvarto/kv_events.h"

namespace kvarto {

struct KvEventForm {
  bool array_encoding = false;  // events as arrays with the tag first (vLLM before 0.24) instead of maps
  bool full_hashes = false;     // 32-byte hashes instead of their last 8 bytes as an integer
};

// One batch: MessagePack of [unix seconds, events, rank].
std::string encode_kv_events(std::span<const KvEvent> events, const KvEventForm& form, double unix_seconds, int rank);

std::string_view kv_cache_spec_kind(GroupKind kind);  // "full_attention"

}  // namespace kvarto
