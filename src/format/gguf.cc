#include "format/gguf.h"

#include <algorithm>
#include <mutex>
#include <numeric>

#include "base/hash.h"
#include "format/gguf_part.h"
#include "format/gguf_split.h"
#include "format/gguf_value.h"
#include "format/printable.h"

namespace kvarto {

struct GgufFile::Impl {
  std::string name;
  uint32_t version = 0;
  std::vector<MappedFile> files;  // one per part; none for bytes that somebody else keeps
  std::vector<GgufValue> values;  // of the first part: the others only repeat the split keys
  std::vector<GgufTensor> tensors;
  std::vector<uint32_t> values_by_key;  // indices, sorted: lookups cost the same for every choice of names
  std::vector<uint32_t> tensors_by_name;
  mutable std::once_flag fingerprint_once;
  mutable std::string fingerprint;

  Status fill(std::vector<GgufPart> parts);
  const GgufValue* find(std::string_view key) const;
  void release(std::span<const std::byte> bytes) const;
  void hash_values(Sha256& sha) const;
  void hash_tensors(Sha256& sha) const;

  tl::unexpected<Error> wrong_type(const GgufValue& value, const char* wanted) const {
    return fail(ErrorCode::corrupt, name + ": key " + quoted(value.key) + " is " + describe_type(value) +
                                        (value.is_array ? "" : " (" + describe_value(value) + ")") + ", wanted " +
                                        wanted);
  }

  template <typename T>
  Result<std::optional<T>> scalar(std::string_view key, std::optional<T> (*exact)(const GgufScalar&),
                                  const char* wanted) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_array) return wrong_type(*value, wanted);
    const std::optional<T> out = exact(GgufElements(*value).next());
    if (!out) return wrong_type(*value, wanted);
    return out;
  }

  template <typename T>
  Result<std::optional<std::vector<T>>> list(std::string_view key, std::optional<T> (*exact)(const GgufScalar&),
                                             const char* wanted) const {
    const GgufValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    std::vector<T> out;
    if (value->count == 0) return out;  // an empty array is one of every type
    if (value->type == GgufValueType::array) return wrong_type(*value, wanted);
    out.reserve(value->count);
    GgufElements elements(*value);
    for (uint64_t i = 0; i < value->count; ++i) {
      const std::optional<T> element = exact(elements.next());
      if (!element) return wrong_type(*value, wanted);
      out.push_back(*element);
    }
    return out;
  }
};

// Takes over what was parsed and builds the lookups.
Status GgufFile::Impl::fill(std::vector<GgufPart> parts) {
  version = parts.front().version;
  values = std::move(parts.front().values);
  for (GgufPart& part : parts) std::move(part.tensors.begin(), part.tensors.end(), std::back_inserter(tensors));

  std::vector<std::string_view> names;
  for (const GgufTensor& tensor : tensors) names.push_back(tensor.name);
  if (const auto twice = find_duplicate(names)) {
    return fail(ErrorCode::corrupt,
                name + ": tensor " + quoted(*twice) + " is in two parts: fetch all parts of the same model");
  }
  values_by_key.resize(values.size());
  std::iota(values_by_key.begin(), values_by_key.end(), 0u);
  std::sort(values_by_key.begin(), values_by_key.end(),
            [&](uint32_t a, uint32_t b) { return values[a].key < values[b].key; });
  tensors_by_name.resize(tensors.size());
  std::iota(tensors_by_name.begin(), tensors_by_name.end(), 0u);
  std::sort(tensors_by_name.begin(), tensors_by_name.end(),
            [&](uint32_t a, uint32_t b) { return names[a] < names[b]; });
  return {};
}

const GgufValue* GgufFile::Impl::find(std::string_view key) const {
  const auto at = std::lower_bound(values_by_key.begin(), values_by_key.end(), key,
                                   [&](uint32_t i, std::string_view k) { return values[i].key < k; });
  return at == values_by_key.end() || values[*at].key != key ? nullptr : &values[*at];
}

void GgufFile::Impl::release(std::span<const std::byte> bytes) const {
  for (const MappedFile& file : files) {
    const std::byte* start = file.bytes().data();
    if (!std::less<>()(bytes.data(), start) && std::less<>()(bytes.data(), start + file.bytes().size())) {
      file.release(static_cast<size_t>(bytes.data() - start), bytes.size());
    }
  }
}

GgufFile::GgufFile() : impl_(std::make_unique<Impl>()) {}
GgufFile::~GgufFile() = default;

Result<std::shared_ptr<const GgufFile>> GgufFile::open(const std::string& path) {
  ASSIGN_OR_RETURN(std::vector<GgufOpenPart> open, open_gguf_parts(path));
  std::shared_ptr<GgufFile> file(new GgufFile());
  std::vector<GgufPart> parts;
  for (GgufOpenPart& o : open) {
    file->impl_->files.push_back(std::move(o.file));
    parts.push_back(std::move(o.part));
  }
  file->impl_->name = path;
  RETURN_IF_ERROR(file->impl_->fill(std::move(parts)));
  return file;
}

Result<std::shared_ptr<const GgufFile>> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  std::vector<GgufPart> parts(1);
  ASSIGN_OR_RETURN(parts[0], parse_gguf_part(bytes, name));
  std::shared_ptr<GgufFile> file(new GgufFile());
  file->impl_->name = std::move(name);
  RETURN_IF_ERROR(file->impl_->fill(std::move(parts)));
  return file;
}

Result<std::optional<uint64_t>> GgufFile::get_uint(std::string_view key) const {
  return impl_->scalar(key, exact_uint, "an unsigned integer");
}
Result<std::optional<int64_t>> GgufFile::get_int(std::string_view key) const {
  return impl_->scalar(key, exact_int, "an integer");
}
Result<std::optional<double>> GgufFile::get_float(std::string_view key) const {
  return impl_->scalar(key, exact_double, "a number");
}
Result<std::optional<bool>> GgufFile::get_bool(std::string_view key) const {
  return impl_->scalar(key, exact_bool, "a bool");
}
Result<std::optional<std::string_view>> GgufFile::get_string(std::string_view key) const {
  return impl_->scalar(key, exact_string, "a string");
}
Result<std::optional<std::vector<uint64_t>>> GgufFile::get_uints(std::string_view key) const {
  return impl_->list(key, exact_uint, "unsigned integers");
}
Result<std::optional<std::vector<int64_t>>> GgufFile::get_ints(std::string_view key) const {
  return impl_->list(key, exact_int, "integers");
}
Result<std::optional<std::vector<float>>> GgufFile::get_floats(std::string_view key) const {
  return impl_->list(key, exact_float, "numbers that fit f32");
}
Result<std::optional<std::vector<std::string_view>>> GgufFile::get_strings(std::string_view key) const {
  return impl_->list(key, exact_string, "strings");
}
Result<std::optional<std::vector<bool>>> GgufFile::get_bools(std::string_view key) const {
  return impl_->list(key, exact_bool, "bools");
}

bool GgufFile::has(std::string_view key) const { return impl_->find(key) != nullptr; }

std::vector<std::string_view> GgufFile::keys() const {
  std::vector<std::string_view> out;
  for (const GgufValue& value : impl_->values) out.push_back(value.key);
  return out;
}

std::string GgufFile::describe(std::string_view key) const {
  const GgufValue* value = impl_->find(key);
  return value == nullptr ? "" : describe_value(*value);
}

const std::vector<GgufTensor>& GgufFile::tensors() const { return impl_->tensors; }

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto& order = impl_->tensors_by_name;
  const auto at = std::lower_bound(order.begin(), order.end(), name,
                                   [&](uint32_t i, std::string_view n) { return impl_->tensors[i].name < n; });
  return at == order.end() || impl_->tensors[*at].name != name ? nullptr : &impl_->tensors[*at];
}

const std::string& GgufFile::name() const { return impl_->name; }

uint32_t GgufFile::version() const { return impl_->version; }

void GgufFile::release(const GgufTensor& tensor) const { impl_->release(tensor.bytes); }

namespace {

// Every field goes in with its length, so that no two files give the same stream of bytes.
template <typename T>
void hash_plain(Sha256& sha, const T& value) {
  sha.update(std::as_bytes(std::span(&value, 1)));
}

void hash_text(Sha256& sha, std::string_view text) {
  hash_plain(sha, uint64_t{text.size()});
  sha.update(text);
}

}  // namespace

// Keys in sorted order: the same model written in another order is the same model.
void GgufFile::Impl::hash_values(Sha256& sha) const {
  const auto architecture = scalar("general.architecture", exact_string, "a string");
  const std::string own = std::string(architecture && *architecture ? **architecture : "") + ".";
  for (const uint32_t i : values_by_key) {
    const GgufValue& value = values[i];
    const bool counts = value.key == "general.architecture" || value.key == "general.quantization_version" ||
                        value.key.starts_with("tokenizer.") || value.key.starts_with(own);
    if (!counts) continue;
    hash_text(sha, value.key);
    hash_plain(sha, value.type);
    hash_plain(sha, uint8_t{value.is_array});
    hash_plain(sha, value.count);
    hash_text(sha, as_text(value.bytes));
  }
}

void GgufFile::Impl::hash_tensors(Sha256& sha) const {
  constexpr size_t kChunk = size_t{8} << 20;  // what stays mapped in while reading
  for (const uint32_t i : tensors_by_name) {
    const GgufTensor& tensor = tensors[i];
    hash_text(sha, tensor.name);
    hash_plain(sha, tensor.type->id);
    hash_plain(sha, uint64_t{tensor.shape.size()});
    for (const uint64_t size : tensor.shape) hash_plain(sha, size);
    for (size_t at = 0; at < tensor.bytes.size(); at += kChunk) {
      const auto chunk = tensor.bytes.subspan(at, std::min(kChunk, tensor.bytes.size() - at));
      sha.update(chunk);
      release(chunk);
    }
  }
}

const std::string& GgufFile::fingerprint() const {
  std::call_once(impl_->fingerprint_once, [this] {
    Sha256 values, tensors, both;
    impl_->hash_values(values);
    impl_->hash_tensors(tensors);
    both.update("kvarto-gguf-1");
    hash_plain(both, values.finish());
    hash_plain(both, tensors.finish());
    impl_->fingerprint = to_hex(both.finish());
  });
  return impl_->fingerprint;
}

}  // namespace kvarto
