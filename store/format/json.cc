#include "store/format/json.h"

namespace weightfs::json {
namespace {

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }
Status bad_field(const char* field, const char* what) { return corrupt(std::string("field '") + field + "': " + what); }

// Builds a Value from the parser's events. Needs no recursion, and stops at the first thing it does not like.
class Builder final : public nlohmann::json_sax<Value> {
 public:
  Builder(std::string_view stream, const OnElement* element, Status* stopped)
      : stream_(stream), element_(element), stopped_(stopped) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(std::int64_t value) override { return add(value); }
  bool number_unsigned(std::uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Value::binary_t&) override { return fail("binary"); }
  bool start_object(std::size_t) override { return open(Value::object()); }
  bool start_array(std::size_t) override { return open(Value::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (++live_ > kMaxValues) return fail("too many values");
    auto [at, fresh] = stack_.back()->get_ref<Value::object_t&>().try_emplace(name, nullptr);
    if (!fresh) return fail("a name occurs twice in an object");
    slot_ = &at->second;
    if (stack_.size() == 1) top_key_ = name;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail("not JSON at byte " + std::to_string(position));
  }

  Status status;
  Value root;

 private:
  bool fail(std::string why) {
    status = corrupt(std::move(why));
    return false;
  }
  Value* place(Value&& value) {
    if (++live_ > kMaxValues) return nullptr;
    if (stack_.empty()) return &(root = std::move(value));
    if (stack_.back()->is_array()) {
      auto& array = stack_.back()->get_ref<Value::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    return &(*slot_ = std::move(value));
  }
  bool add(Value&& value) {
    if (place(std::move(value)) == nullptr) return fail("too many values");
    return completed();
  }
  bool open(Value&& container) {
    if (stack_.size() == kMaxDepth) return fail("nested too deep");
    auto* at = place(std::move(container));
    if (at == nullptr) return fail("too many values");
    stack_.push_back(at);
    if (streaming_here()) live_before_ = live_;
    return true;
  }
  bool close() {
    stack_.pop_back();
    return completed();
  }
  bool streaming_here() const {
    return element_ != nullptr && stack_.size() == 2 && stack_[1]->is_array() && stack_[0]->is_object() &&
           top_key_ == stream_;
  }
  bool completed() {
    if (!streaming_here() || stack_[1]->empty()) return true;
    auto& array = stack_[1]->get_ref<Value::array_t&>();
    if (stopped_->is_ok()) *stopped_ = (*element_)(std::move(array.back()));
    array.clear();
    live_ = live_before_;
    return true;
  }

  std::string_view stream_;
  const OnElement* element_;
  Status* stopped_;
  std::vector<Value*> stack_;  // open containers; a parent gets nothing new while its child is open
  Value* slot_ = nullptr;      // where the value of the last key goes
  std::string top_key_;
  std::size_t live_ = 0, live_before_ = 0;
};

Result<Value> run(ByteSpan text, Builder& builder) {
  auto view = as_text(text);
  // The parser takes a NUL for the end of its input. No JSON text has one.
  if (auto nul = view.find('\0'); nul != view.npos) return corrupt("not JSON at byte " + std::to_string(nul));
  bool ok = Value::sax_parse(view.begin(), view.end(), &builder);
  if (!builder.status.is_ok()) return builder.status;
  if (!ok) return corrupt("not JSON");
  return std::move(builder.root);
}

}  // namespace

Writer& Writer::key(std::string_view name) {
  text(name);
  out_.push_back(':');
  comma_ = false;
  return *this;
}

Writer& Writer::text(std::string_view ascii) {
  separate();
  out_.push_back('"');
  for (char c : ascii) WFS_CHECK(c >= ' ' && c <= '~' && c != '"' && c != '\\');
  out_.append(ascii);
  out_.push_back('"');
  return *this;
}

Writer& Writer::raw(std::string_view value) {
  separate();
  out_.append(value);
  return *this;
}

Writer& Writer::open(char bracket) {
  separate();
  out_.push_back(bracket);
  comma_ = false;
  return *this;
}

Writer& Writer::close(char bracket) {
  out_.push_back(bracket);
  comma_ = true;
  return *this;
}

void Writer::separate() {
  if (comma_) out_.push_back(',');
  comma_ = true;
}

Result<Value> parse(ByteSpan text) {
  Builder builder({}, nullptr, nullptr);
  return run(text, builder);
}

Result<Value> parse_streaming(ByteSpan text, std::string_view array, const OnElement& element, Status& stopped) {
  Builder builder(array, &element, &stopped);
  return run(text, builder);
}

Status require_object(const Value& value, std::string_view what) {
  return value.is_object() ? Status() : corrupt(std::string(what) + ": not an object");
}

const Value* find(const Value& object, const char* field) {
  auto at = object.find(field);
  return at == object.end() ? nullptr : &*at;
}

Result<const Value*> get(const Value& object, const char* field) {
  const auto* value = find(object, field);
  if (value == nullptr) return bad_field(field, "missing");
  return value;
}

Result<std::uint64_t> as_number(const Value& value, std::uint64_t max) {
  if (!value.is_number_unsigned()) return corrupt("not a whole number");
  auto number = value.get<std::uint64_t>();
  if (number > max || number > kMaxNumber) return corrupt("too large");
  return number;
}

Result<std::uint64_t> get_number(const Value& object, const char* field, std::uint64_t max) {
  const auto* value = WFS_TRY(get(object, field));
  return as_number(*value, max).with(std::string("field '") + field + "'");
}

Result<std::int64_t> get_signed(const Value& object, const char* field) {
  const auto* value = WFS_TRY(get(object, field));
  if (value->is_number_unsigned() && value->get<std::uint64_t>() > kMaxNumber) return bad_field(field, "too large");
  if (!value->is_number_integer()) return bad_field(field, "not a whole number");
  return value->get<std::int64_t>();
}

Result<std::string> get_text(const Value& object, const char* field) {
  const auto* value = WFS_TRY(get(object, field));
  if (!value->is_string()) return bad_field(field, "not a string");
  return value->get_ref<const std::string&>();
}

Result<std::string> get_bytes(const Value& object, const char* field) {
  auto text = WFS_TRY(get_text(object, field));
  auto decoded = percent_decode(text);
  if (!decoded.is_ok()) return bad_field(field, decoded.status().message().c_str());
  return decoded;
}

bool is_id(std::string_view text) {
  std::array<std::byte, 16> bits{};
  return from_hex(text, bits);
}

Result<std::string> get_id(const Value& object, const char* field) {
  auto id = WFS_TRY(get_text(object, field));
  if (!is_id(id)) return bad_field(field, "not 32 lower-case hex digits");
  return id;
}

Result<Sha256> as_sha256(const Value& value) {
  if (!value.is_string()) return corrupt("not a string");
  auto digest = Sha256::parse(value.get_ref<const std::string&>());
  if (!digest.is_ok()) return corrupt("not a SHA-256 in hex");
  return digest;
}

Result<Sha256> get_sha256(const Value& object, const char* field) {
  const auto* value = WFS_TRY(get(object, field));
  return as_sha256(*value).with(std::string("field '") + field + "'");
}

Result<const Value*> get_array(const Value& object, const char* field) {
  const auto* value = WFS_TRY(get(object, field));
  if (!value->is_array()) return bad_field(field, "not an array");
  return value;
}

Result<const Value*> get_object(const Value& object, const char* field) {
  const auto* value = WFS_TRY(get(object, field));
  if (!value->is_object()) return bad_field(field, "not an object");
  return value;
}

Status check_format(const Value& object, std::uint64_t newest) {
  auto format = WFS_TRY(get_number(object, "format"));
  if (format == 0) return bad_field("format", "zero");
  if (format > newest) {
    return {Code::kUnsupported, "written in format " + std::to_string(format) + ", this version reads up to " +
                                    std::to_string(newest) + ": update weightfs"};
  }
  return {};
}

}  // namespace weightfs::json
