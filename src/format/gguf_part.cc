#include "format/gguf_part.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "format/cursor.h"
#include "format/printable.h"

namespace kvarto {
namespace {

constexpr size_t kMaxKeyBytes = 65535;
constexpr size_t kMaxTensorNameBytes = 64;
constexpr uint32_t kMaxDimensions = 4;
constexpr int kMaxNesting = 4;  // arrays of arrays are not used in practice; what is deeper is an attack
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 24;

// The fewest bytes that an entry can take: what makes a count plausible.
constexpr uint64_t kMinValueBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Reads one file front to back, in the order of its sections.
class PartReader {
 public:
  PartReader(std::span<const std::byte> bytes, const std::string& name)
      : size_(bytes.size()), bytes_(bytes), cursor_(bytes), name_(name) {}

  Result<GgufPart> read() {
    RETURN_IF_ERROR(read_header());
    RETURN_IF_ERROR(read_values());
    RETURN_IF_ERROR(read_tensors());
    RETURN_IF_ERROR(place_tensors());
    return std::move(part_);
  }

 private:
  using Where = std::string_view;  // the item being read, as an error names it

  tl::unexpected<Error> corrupt(const std::string& what) const { return fail(ErrorCode::corrupt, name_ + ": " + what); }

  tl::unexpected<Error> corrupt(Where where, const std::string& what) const {
    return corrupt(std::string(where) + ": " + what);
  }

  tl::unexpected<Error> cut(Where where) const {
    return corrupt("the file ends at byte " + std::to_string(size_) + ", inside " + std::string(where) +
                   ": it is incomplete, fetch it again");
  }

  std::string left() const { return "the " + std::to_string(cursor_.remaining()) + " bytes left"; }

  template <typename T>
  Status read_number(T& out, Where where) {
    const std::optional<T> value = cursor_.read<T>();
    if (!value) return cut(where);
    out = *value;
    return {};
  }

  Status read_string(std::string_view& out, uint64_t limit, Where where) {
    uint64_t length = 0;
    RETURN_IF_ERROR(read_number(length, where));
    if (length > limit) {
      return corrupt(where, "length " + std::to_string(length) + " is over the limit of " + std::to_string(limit));
    }
    const auto bytes = cursor_.take(length);
    if (!bytes) return corrupt(where, "length " + std::to_string(length) + " does not fit into " + left());
    out = as_text(*bytes);
    return {};
  }

  // A key or a tensor's name.
  Status read_name(std::string_view& out, uint64_t limit, Where where) {
    RETURN_IF_ERROR(read_string(out, limit, where));
    if (out.empty()) return corrupt(where, "is empty");
    return {};
  }

  Status read_header();
  Status read_values();
  Status read_elements(GgufValueType type, uint64_t count, int depth, Where where);
  Result<GgufValueType> read_type(Where where);
  Status read_tensors();
  Status read_tensor(std::string_view number);
  Status read_shape(GgufTensor& tensor, Where where);
  Result<uint64_t> alignment() const;
  Status place_tensors();
  Status check_overlaps() const;

  const uint64_t size_;
  const std::span<const std::byte> bytes_;
  Cursor cursor_;
  const std::string& name_;
  uint64_t value_count_ = 0;
  uint64_t tensor_count_ = 0;
  std::vector<uint64_t> offsets_;  // of the tensors, in the data section
  std::vector<uint64_t> tensor_bytes_;
  GgufPart part_;
};

Status PartReader::read_header() {
  constexpr std::string_view kMagic = "GGUF";
  const std::string_view start = as_text(bytes_.first(std::min<size_t>(size_, kMagic.size())));
  if (start != kMagic.substr(0, start.size())) {
    return corrupt("not a GGUF file: it starts with " + quoted(start) + " instead of \"GGUF\"");
  }
  if (!cursor_.take(kMagic.size())) return cut("the header");
  RETURN_IF_ERROR(read_number(part_.version, "the header"));
  if (part_.version != 0 && (part_.version & 0xffff) == 0) {
    return fail(ErrorCode::unsupported, name_ + ": a big-endian GGUF file: convert it to little endian");
  }
  if (part_.version == 1) {
    return fail(ErrorCode::unsupported, name_ + ": GGUF version 1 is obsolete: convert the model again to version 3");
  }
  if (part_.version != 2 && part_.version != 3) {
    return fail(ErrorCode::unsupported, name_ + ": GGUF version " + std::to_string(part_.version) +
                                            " is not known here, versions 2 and 3 are: convert the model to version 3");
  }
  RETURN_IF_ERROR(read_number(tensor_count_, "the header"));
  RETURN_IF_ERROR(read_number(value_count_, "the header"));
  if (tensor_count_ > cursor_.remaining() / kMinTensorBytes) {
    return corrupt("tensor count " + std::to_string(tensor_count_) + " does not fit into " + left());
  }
  if (value_count_ > cursor_.remaining() / kMinValueBytes) {
    return corrupt("key count " + std::to_string(value_count_) + " does not fit into " + left());
  }
  return {};
}

Result<GgufValueType> PartReader::read_type(Where where) {
  uint32_t id = 0;
  RETURN_IF_ERROR(read_number(id, where));
  if (id > static_cast<uint32_t>(GgufValueType::f64)) {
    return corrupt(where, "value type " + std::to_string(id) + " is unknown (0 to 12 are known)");
  }
  return static_cast<GgufValueType>(id);
}

Status PartReader::read_values() {
  std::vector<std::string_view> keys;
  for (uint64_t i = 0; i < value_count_; ++i) {
    GgufValue value;
    RETURN_IF_ERROR(read_name(value.key, kMaxKeyBytes, "the name of key " + std::to_string(i)));
    const std::string where = "key " + quoted(value.key);
    ASSIGN_OR_RETURN(value.type, read_type(where));
    if (value.type == GgufValueType::array) {
      value.is_array = true;
      ASSIGN_OR_RETURN(value.type, read_type(where));
      RETURN_IF_ERROR(read_number(value.count, where));
    }
    const size_t start = cursor_.position();
    RETURN_IF_ERROR(read_elements(value.type, value.count, 1, where));
    value.bytes = cursor_.since(start);
    keys.push_back(value.key);
    part_.values.push_back(value);
  }
  if (const auto twice = find_duplicate(std::move(keys))) return corrupt("key " + quoted(*twice) + " occurs twice");
  return {};
}

// Steps over `count` elements and checks them. The first test bounds the loops by the bytes that are there.
Status PartReader::read_elements(GgufValueType type, uint64_t count, int depth, Where where) {
  const uint64_t width = gguf_value_min_bytes(type);
  if (count > cursor_.remaining() / width) {
    return corrupt(
        where, std::to_string(count) + " values of type " + gguf_value_type_name(type) + " do not fit into " + left());
  }
  if (type == GgufValueType::string) {
    for (uint64_t i = 0; i < count; ++i) {
      std::string_view ignored;
      RETURN_IF_ERROR(read_string(ignored, UINT64_MAX, where));
    }
  } else if (type == GgufValueType::array) {
    if (depth >= kMaxNesting) {
      return corrupt(where, "arrays are nested more than " + std::to_string(kMaxNesting) + " deep");
    }
    for (uint64_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(const GgufValueType inner, read_type(where));
      uint64_t inner_count = 0;
      RETURN_IF_ERROR(read_number(inner_count, where));
      RETURN_IF_ERROR(read_elements(inner, inner_count, depth + 1, where));
    }
  } else {
    const auto bytes = cursor_.take(count * width);
    if (!bytes) return cut(where);
    if (type == GgufValueType::boolean) {
      for (const std::byte b : *bytes) {
        if (b > std::byte{1}) {
          return corrupt(where, "a bool is 0 or 1, not " + std::to_string(std::to_integer<int>(b)));
        }
      }
    }
  }
  return {};
}

Status PartReader::read_tensors() {
  for (uint64_t i = 0; i < tensor_count_; ++i) RETURN_IF_ERROR(read_tensor(std::to_string(i)));
  std::vector<std::string_view> names;
  for (const GgufTensor& tensor : part_.tensors) names.push_back(tensor.name);
  if (const auto twice = find_duplicate(std::move(names))) return corrupt("tensor " + quoted(*twice) + " occurs twice");
  return {};
}

Status PartReader::read_shape(GgufTensor& tensor, Where where) {
  uint32_t dimensions = 0;
  RETURN_IF_ERROR(read_number(dimensions, where));
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    return corrupt(where,
                   std::to_string(dimensions) + " dimensions, there must be 1 to " + std::to_string(kMaxDimensions));
  }
  tensor.elements = 1;
  for (uint32_t d = 0; d < dimensions; ++d) {
    uint64_t size = 0;
    RETURN_IF_ERROR(read_number(size, where));
    if (size == 0) return corrupt(where, "dimension " + std::to_string(d) + " has size 0");
    if (__builtin_mul_overflow(tensor.elements, size, &tensor.elements)) {
      return corrupt(where, "dimension " + std::to_string(d) + " of size " + std::to_string(size) +
                                " makes more elements than 64 bits can count");
    }
    tensor.shape.push_back(size);
  }
  return {};
}

Status PartReader::read_tensor(std::string_view number) {
  GgufTensor tensor;
  std::string_view tensor_name;
  RETURN_IF_ERROR(read_name(tensor_name, kMaxTensorNameBytes, "the name of tensor " + std::string(number)));
  tensor.name = tensor_name;
  const std::string where = "tensor " + quoted(tensor_name);

  RETURN_IF_ERROR(read_shape(tensor, where));
  uint32_t type = 0;
  RETURN_IF_ERROR(read_number(type, where));
  tensor.type = gguf_type_info(type);
  if (tensor.type == nullptr) {
    return fail(ErrorCode::unsupported, name_ + ": " + where + ": tensor type " + std::to_string(type) +
                                            " is unknown: convert the model with a known type such as Q8_0");
  }
  if (tensor.shape[0] % tensor.type->block_elements != 0) {
    return corrupt(where, "rows of " + std::to_string(tensor.shape[0]) + " elements cannot be cut into blocks of " +
                              std::to_string(tensor.type->block_elements) + " (" + tensor.type->name + ")");
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(tensor.elements / tensor.type->block_elements, tensor.type->block_bytes, &bytes)) {
    return corrupt(where, std::to_string(tensor.elements) + " elements take more bytes than 64 bits can count");
  }
  uint64_t offset = 0;
  RETURN_IF_ERROR(read_number(offset, where));
  offsets_.push_back(offset);
  tensor_bytes_.push_back(bytes);
  part_.tensors.push_back(std::move(tensor));
  return {};
}

Result<uint64_t> PartReader::alignment() const {
  const GgufValue* value = find_value(part_, "general.alignment");
  if (value == nullptr) return kDefaultAlignment;
  const std::optional<uint64_t> number = value->is_array ? std::nullopt : exact_uint(GgufElements(*value).next());
  const bool power_of_two = number && std::has_single_bit(*number);
  if (!power_of_two || *number < kMinAlignment || *number > kMaxAlignment) {
    return corrupt("key \"general.alignment\"", describe_value(*value) + " is not a power of two from " +
                                                    std::to_string(kMinAlignment) + " to " +
                                                    std::to_string(kMaxAlignment));
  }
  return *number;
}

// Turns offsets into spans of the file.
Status PartReader::place_tensors() {
  ASSIGN_OR_RETURN(const uint64_t align, alignment());
  const uint64_t data_start = (cursor_.position() + align - 1) / align * align;  // small numbers: no overflow
  for (size_t i = 0; i < part_.tensors.size(); ++i) {
    GgufTensor& tensor = part_.tensors[i];
    const std::string where = "tensor " + quoted(tensor.name);
    if (offsets_[i] % align != 0) {
      return corrupt(where, "offset " + std::to_string(offsets_[i]) + " is not a multiple of the alignment " +
                                std::to_string(align));
    }
    const uint64_t available = data_start < size_ ? size_ - data_start : 0;
    if (offsets_[i] > available || tensor_bytes_[i] > available - offsets_[i]) {
      return corrupt(where, std::to_string(tensor_bytes_[i]) + " bytes at offset " + std::to_string(offsets_[i]) +
                                " lie past the end of the data section, which has " + std::to_string(available) +
                                " bytes: the file is incomplete, fetch it again");
    }
    tensor.bytes = bytes_.subspan(data_start + offsets_[i], tensor_bytes_[i]);
  }
  return check_overlaps();
}

Status PartReader::check_overlaps() const {
  std::vector<const GgufTensor*> by_place;
  for (const GgufTensor& tensor : part_.tensors) by_place.push_back(&tensor);
  std::sort(by_place.begin(), by_place.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->bytes.data() < b->bytes.data(); });
  for (size_t i = 1; i < by_place.size(); ++i) {
    const std::span<const std::byte> before = by_place[i - 1]->bytes;
    if (before.data() + before.size() > by_place[i]->bytes.data()) {
      return corrupt("tensors " + quoted(by_place[i - 1]->name) + " and " + quoted(by_place[i]->name) + " overlap");
    }
  }
  return {};
}

}  // namespace

Result<GgufPart> parse_gguf_part(std::span<const std::byte> bytes, const std::string& name) {
  return PartReader(bytes, name).read();
}

const GgufValue* find_value(const GgufPart& part, std::string_view key) {
  const auto found =
      std::find_if(part.values.begin(), part.values.end(), [&](const GgufValue& v) { return v.key == key; });
  return found == part.values.end() ? nullptr : &*found;
}

std::optional<std::string_view> find_duplicate(std::vector<std::string_view> texts) {
  std::sort(texts.begin(), texts.end());
  const auto twice = std::adjacent_find(texts.begin(), texts.end());
  if (twice == texts.end()) return std::nullopt;
  return *twice;
}

}  // namespace kvarto
