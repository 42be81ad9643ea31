#include "server/kv_event_encoding.h"

#include "base/hash.h"
#include "server/msgpack.h"

namespace kvarto {
namespace {

// The device tier. vLLM says so on CPUs as well, and routers look for it.
constexpr std::string_view kMedium = "GPU";

class Encoder {
 public:
  explicit Encoder(const KvEventForm& form) : form_(form) {}

  std::string batch(std::span<const KvEvent> events, double unix_seconds, int rank) {
    out_.array(3);
    out_.float64(unix_seconds);
    out_.array(static_cast<uint32_t>(events.size()));
    for (const KvEvent& event : events) one(event);
    out_.integer(rank);
    return out_.take();
  }

 private:
  void one(const KvEvent& event) {
    switch (event.kind) {
      case KvEvent::Kind::stored:
        return form_.array_encoding ? stored_array(event) : stored_map(event);
      case KvEvent::Kind::removed:
        return form_.array_encoding ? removed_array(event) : removed_map(event);
      case KvEvent::Kind::cleared:
        return cleared();
    }
  }

  void hash(const BlockHash& hash) {
    if (form_.full_hashes) {
      out_.binary(hash);
    } else {
      out_.unsigned_integer(event_id(hash));
    }
  }
  void hashes(const KvEvent& event) {
    out_.array(static_cast<uint32_t>(event.hashes.size()));
    for (const BlockHash& one : event.hashes) hash(one);
  }
  void parent(const KvEvent& event) { event.parent ? hash(*event.parent) : out_.nil(); }
  void tokens(const KvEvent& event) {
    out_.array(static_cast<uint32_t>(event.tokens.size()));
    for (const TokenId token : event.tokens) out_.integer(token);
  }
  // Per block what its name depends on besides tokens: the salt, in the first block of a sequence.
  void extra_keys(const KvEvent& event) {
    out_.array(static_cast<uint32_t>(event.hashes.size()));
    for (size_t i = 0; i < event.hashes.size(); ++i) {
      if (i > 0 || event.cache_salt.empty()) {
        out_.nil();
      } else {
        out_.array(1);
        out_.text(event.cache_salt);
      }
    }
  }

  void stored_map(const KvEvent& event) {
    const bool window = event.group_kind == GroupKind::window;
    out_.map(window ? 12 : 11);
    key("type").text("BlockStored");
    key("block_hashes");
    hashes(event);
    key("parent_block_hash");
    parent(event);
    key("token_ids");
    tokens(event);
    key("block_size").integer(event.block_tokens);
    key("lora_id").nil();
    key("medium").text(kMedium);
    key("lora_name").nil();
    key("extra_keys");
    extra_keys(event);
    key("group_idx").integer(event.group);
    key("kv_cache_spec_kind").text(kv_cache_spec_kind(event.group_kind));
    if (window) key("kv_cache_spec_sliding_window").integer(event.window);
  }
  void stored_array(const KvEvent& event) {
    out_.array(7);
    out_.text("BlockStored");
    hashes(event);
    parent(event);
    tokens(event);
    out_.integer(event.block_tokens);
    out_.nil();  // lora_id
    out_.text(kMedium);
  }

  void removed_map(const KvEvent& event) {
    out_.map(4);
    key("type").text("BlockRemoved");
    key("block_hashes");
    hashes(event);
    key("medium").text(kMedium);
    key("group_idx").integer(event.group);
  }
  void removed_array(const KvEvent& event) {
    out_.array(3);
    out_.text("BlockRemoved");
    hashes(event);
    out_.text(kMedium);
  }

  void cleared() {
    if (form_.array_encoding) {
      out_.array(1);
    } else {
      out_.map(1);
      key("type");
    }
    out_.text("AllBlocksCleared");
  }

  MsgpackWriter& key(std::string_view name) {
    out_.text(name);
    return out_;
  }

  KvEventForm form_;
  MsgpackWriter out_;
};

}  // namespace

std::string_view kv_cache_spec_kind(GroupKind kind) {
  switch (kind) {
    case GroupKind::full:
      return "full_attention";
    case GroupKind::window:
      return "sliding_window";
    case GroupKind::latent:
      return "mla_attention";
    case GroupKind::state:
      return "mamba";
  }
  return "unknown";
}

std::string encode_kv_events(std::span<const KvEvent> events, const KvEventForm& form, double unix_seconds, int rank) {
  return Encoder(form).batch(events, unix_seconds, rank);
}

}  // namespace kvarto
