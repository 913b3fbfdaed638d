// Messages as bytes and back: the wire format of protocol buffers, by protozero. A message is a structure; in its namespace,
// `fields(archive, message)` names its fields once, for all that walk over them: the writer, the reader, the layout's text
// and tests. A field has a number, for ever: numbers are never given a second meaning. A reader skips fields that it does
// not know without keeping them, and bounds lists and texts before it allocates them.
//
// Numbers are always written; false, empty texts, empty lists and keys that are none are not.
#pragma once

#include <protozero/basic_pbf_writer.hpp>
#include <protozero/buffer_tmpl.hpp>
#include <protozero/exception.hpp>
#include <protozero/pbf_reader.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/bitmap.h"
#include "base/endpoint.h"
#include "base/shared_list.h"
#include "encoding/bytes.h"
#include "encoding/parsed.h"
#include "netsum/types.h"
#include "seal/packet_key.h"

template <>
struct protozero::buffer_customization<netsum::encoding::Bytes> {
  using Bytes = netsum::encoding::Bytes;
  static std::size_t size(const Bytes* buffer) noexcept { return buffer->size(); }
  static void append(Bytes* buffer, const char* data, std::size_t count) {
    buffer->insert(buffer->end(), data, data + count);
  }
  static void append_zeros(Bytes* buffer, std::size_t count) { buffer->insert(buffer->end(), count, '\0'); }
  static void resize(Bytes* buffer, std::size_t size) { buffer->resize(size); }
  static void reserve_additional(Bytes* buffer, std::size_t size) { buffer->reserve(buffer->size() + size); }
  static void erase_range(Bytes* buffer, std::size_t from, std::size_t to) {
    buffer->erase(buffer->begin() + static_cast<std::ptrdiff_t>(from), buffer->begin() + static_cast<std::ptrdiff_t>(to));
  }
  static char* at_pos(Bytes* buffer, std::size_t pos) { return buffer->data() + pos; }
  static void push_back(Bytes* buffer, char ch) { buffer->push_back(ch); }
};

namespace netsum::encoding {

// Why bytes are no such message. Never leaves parsed().
struct Nonsense {
  std::string what;
};

inline constexpr std::size_t longest_text_in_list = 255;

// What a list holds: numbers, texts, or messages.
template <class Value>
inline constexpr bool is_number = std::is_integral_v<Value> || std::is_enum_v<Value>;
template <class Value>
inline constexpr bool is_text = std::is_same_v<Value, std::string>;

// An inner list of a list of lists.
template <class Value>
struct Inner {
  std::vector<Value>& values;
  std::size_t most;
};
template <class Archive, class Value>
void fields(Archive& a, Inner<Value>& m) {
  a.list(1, "values", m.values, m.most);
}

class Writer {
 public:
  explicit Writer(Bytes& out) : bytes_(out), out_(out) {}

  template <class Number>
  void number(std::uint32_t tag, const char*, Number& value) {
    out_.add_uint64(tag, static_cast<std::uint64_t>(value));
  }
  template <class Choice>
  void choice(std::uint32_t tag, const char* name, Choice& value, Choice) {
    number(tag, name, value);
  }
  void flag(std::uint32_t tag, const char*, bool& value) {
    if (value) out_.add_bool(tag, true);
  }
  void duration(std::uint32_t tag, const char*, std::chrono::milliseconds& value) {
    out_.add_uint64(tag, static_cast<std::uint64_t>(std::clamp<std::int64_t>(value.count(), 0, UINT32_MAX)));
  }
  void text(std::uint32_t tag, const char*, std::string& value, std::size_t) {
    if (!value.empty()) out_.add_bytes(tag, value.data(), value.size());
  }
  void blob(std::uint32_t tag, const char*, Bytes& value, std::size_t) {
    if (!value.empty()) out_.add_bytes(tag, value.data(), value.size());
  }
  void bytes(std::uint32_t tag, const char*, std::array<std::uint8_t, 16>& value) {
    out_.add_bytes(tag, reinterpret_cast<const char*>(value.data()), value.size());
  }
  void key(std::uint32_t tag, const char*, seal::PacketKey& value) {
    if (value) out_.add_bytes(tag, reinterpret_cast<const char*>(value.bytes().data()), value.bytes().size());
  }
  template <class Message>
  void message(std::uint32_t tag, const char*, Message& value) {
    const std::size_t before = bytes_.size();
    {
      Writer inner(*this, tag);
      fields(inner, value);
    }
    if (bytes_.size() == before) out_.add_bytes(tag, "", 0);  // protozero leaves out what is empty; in lists it counts
  }
  template <class Value>
  void maybe(std::uint32_t tag, const char* name, std::optional<Value>& value) {
    if (!value) return;
    if constexpr (is_number<Value>) {
      number(tag, name, *value);
    } else {
      message(tag, name, *value);
    }
  }
  template <class Value>
  void list(std::uint32_t tag, const char* name, std::vector<Value>& values, std::size_t) {
    if constexpr (is_number<Value>) {
      if (!values.empty()) out_.add_packed_uint64(tag, values.begin(), values.end());
    } else if constexpr (is_text<Value>) {
      for (const std::string& value : values) out_.add_bytes(tag, value.data(), value.size());
    } else {
      for (Value& value : values) message(tag, name, value);
    }
  }
  template <class Value>
  void list(std::uint32_t tag, const char* name, SharedList<Value>& values, std::size_t most) {
    std::vector<Value> copy = values;
    list(tag, name, copy, most);
  }
  template <class Value>
  void lists(std::uint32_t tag, const char* name, std::vector<std::vector<Value>>& values, std::size_t, std::size_t most) {
    for (std::vector<Value>& value : values) {
      Inner<Value> inner{value, most};
      message(tag, name, inner);
    }
  }
  template <class Key, class Value>
  void map(std::uint32_t tag, const char* name, std::map<Key, Value>& values, std::size_t) {
    for (const auto& [key, value] : values) {
      std::pair<Key, Value> entry{key, value};
      message(tag, name, entry);
    }
  }
  template <std::uint32_t Capacity>
  void ranks(std::uint32_t tag, const char* name, BasicRankSet<Capacity>& value) {
    std::vector<std::uint32_t> all;
    value.for_each([&](std::uint32_t rank) { all.push_back(rank); });
    list(tag, name, all, Capacity);
  }

 private:
  using Pbf = protozero::basic_pbf_writer<Bytes>;
  Writer(Writer& parent, std::uint32_t tag) : bytes_(parent.bytes_), out_(parent.out_, tag) {}
  Bytes& bytes_;
  Pbf out_;
};

// Throws Nonsense, or protozero::exception.
class Reader {
 public:
  template <class Message>
  static void read(protozero::data_view bytes, Message& message) {
    Reader reader{protozero::pbf_reader(bytes)};
    fields(reader, message);  // empties lists whose default is another one
    while (reader.in_.next()) {
      reader.tag_ = reader.in_.tag();
      reader.taken_ = false;
      fields(reader, message);
      if (!reader.taken_) reader.in_.skip();
    }
  }

  template <class Number>
  void number(std::uint32_t tag, const char* name, Number& value) {
    if (!takes(tag, protozero::pbf_wire_type::varint, name)) return;
    value = narrowed<Number>(in_.get_uint64(), name);
  }
  template <class Choice>
  void choice(std::uint32_t tag, const char* name, Choice& value, Choice last) {
    std::uint64_t number = static_cast<std::uint64_t>(value);
    this->number(tag, name, number);
    if (number > static_cast<std::uint64_t>(last)) throw Nonsense{std::string(name) + " has an unknown value"};
    value = static_cast<Choice>(number);
  }
  void flag(std::uint32_t tag, const char* name, bool& value) {
    if (takes(tag, protozero::pbf_wire_type::varint, name)) value = in_.get_uint64() != 0;
  }
  void duration(std::uint32_t tag, const char* name, std::chrono::milliseconds& value) {
    auto count = static_cast<std::uint32_t>(value.count());
    number(tag, name, count);
    value = std::chrono::milliseconds(count);
  }
  void text(std::uint32_t tag, const char* name, std::string& value, std::size_t longest) {
    if (takes(tag, protozero::pbf_wire_type::length_delimited, name)) value = text_of(name, longest);
  }
  void blob(std::uint32_t tag, const char* name, Bytes& value, std::size_t longest) {
    if (!takes(tag, protozero::pbf_wire_type::length_delimited, name)) return;
    const protozero::data_view view = view_of(name, longest);
    value.assign(view.data(), view.data() + view.size());
  }
  void bytes(std::uint32_t tag, const char* name, std::array<std::uint8_t, 16>& value) {
    if (!takes(tag, protozero::pbf_wire_type::length_delimited, name)) return;
    const protozero::data_view view = in_.get_view();
    if (view.size() != value.size()) throw Nonsense{std::string(name) + " does not have 16 bytes"};
    std::copy_n(view.data(), view.size(), value.begin());
  }
  void key(std::uint32_t tag, const char* name, seal::PacketKey& value) {
    if (!takes(tag, protozero::pbf_wire_type::length_delimited, name)) return;
    const protozero::data_view view = in_.get_view();
    if (view.size() != seal::PacketKey::size) throw Nonsense{std::string("the key '") + name + "' does not have 32 bytes"};
    value = seal::PacketKey(
        std::span<const std::byte, seal::PacketKey::size>(reinterpret_cast<const std::byte*>(view.data()), view.size()));
  }
  template <class Message>
  void message(std::uint32_t tag, const char* name, Message& value) {
    if (takes(tag, protozero::pbf_wire_type::length_delimited, name)) read(in_.get_view(), value);
  }
  template <class Value>
  void maybe(std::uint32_t tag, const char* name, std::optional<Value>& value) {
    if (tag_ != tag) return;
    value.emplace();
    if constexpr (is_number<Value>) {
      number(tag, name, *value);
    } else {
      message(tag, name, *value);
    }
  }
  template <class Value>
  void list(std::uint32_t tag, const char* name, std::vector<Value>& values, std::size_t most) {
    if (tag_ == 0) return values.clear();
    if (!takes(tag, protozero::pbf_wire_type::length_delimited, name)) return;
    if constexpr (is_number<Value>) {
      for (const std::uint64_t value : in_.get_packed_uint64()) {
        check_room(values.size(), most, name);
        values.push_back(narrowed<Value>(value, name));
      }
    } else {
      check_room(values.size(), most, name);
      if constexpr (is_text<Value>) {
        values.push_back(text_of(name, longest_text_in_list));
      } else {
        read(in_.get_view(), values.emplace_back());
      }
    }
  }
  // Of numbers: all of them in one field.
  template <class Value>
  void list(std::uint32_t tag, const char* name, SharedList<Value>& values, std::size_t most) {
    static_assert(is_number<Value>);
    if (tag_ == 0) return void(values = {});
    if (tag_ != tag) return;
    if (!values.empty()) throw Nonsense{std::string(name) + " is there twice"};
    std::vector<Value> read;
    list(tag, name, read, most);
    values = std::move(read);
  }
  template <class Value>
  void lists(std::uint32_t tag, const char* name, std::vector<std::vector<Value>>& values, std::size_t most,
             std::size_t most_inner) {
    if (!takes(tag, protozero::pbf_wire_type::length_delimited, name)) return;
    check_room(values.size(), most, name);
    Inner<Value> inner{values.emplace_back(), most_inner};
    read(in_.get_view(), inner);
  }
  template <class Key, class Value>
  void map(std::uint32_t tag, const char* name, std::map<Key, Value>& values, std::size_t most) {
    if (!takes(tag, protozero::pbf_wire_type::length_delimited, name)) return;
    check_room(values.size(), most, name);
    std::pair<Key, Value> entry{};
    read(in_.get_view(), entry);
    if (!values.insert(entry).second) throw Nonsense{std::string(name) + " has two entries with the same key"};
  }
  template <std::uint32_t Capacity>
  void ranks(std::uint32_t tag, const char* name, BasicRankSet<Capacity>& value) {
    if (tag_ != tag) return;
    std::vector<std::uint32_t> all;
    list(tag, name, all, Capacity);
    for (const std::uint32_t rank : all) {
      if (rank >= Capacity) throw Nonsense{std::string(name) + " has a number above " + std::to_string(Capacity - 1)};
      value.insert(rank);
    }
  }

 private:
  explicit Reader(protozero::pbf_reader in) : in_(in) {}

  [[nodiscard]] bool takes(std::uint32_t tag, protozero::pbf_wire_type type, const char* name) {
    if (tag_ != tag) return false;
    if (in_.wire_type() != type) throw Nonsense{std::string(name) + " has another type"};
    taken_ = true;
    return true;
  }
  template <class Number>
  [[nodiscard]] static Number narrowed(std::uint64_t value, const char* name) {
    if (value > std::numeric_limits<Number>::max()) {
      throw Nonsense{std::string(name) + " is above " + std::to_string(std::numeric_limits<Number>::max())};
    }
    return static_cast<Number>(value);
  }
  static void check_room(std::size_t size, std::size_t most, const char* name) {
    if (size >= most) throw Nonsense{std::string(name) + " has more than " + std::to_string(most) + " entries"};
  }
  [[nodiscard]] protozero::data_view view_of(const char* name, std::size_t longest) {
    const protozero::data_view view = in_.get_view();
    if (view.size() > longest) {
      throw Nonsense{std::string(name) + " is longer than " + std::to_string(longest) + " bytes"};
    }
    return view;
  }
  [[nodiscard]] std::string text_of(const char* name, std::size_t longest) {
    const protozero::data_view view = view_of(name, longest);
    return {view.data(), view.size()};
  }

  protozero::pbf_reader in_;
  std::uint32_t tag_ = 0;
  bool taken_ = false;
};

// The layout of a message in words: all that must be the same at both ends.
class Layout {
 public:
  template <class Message>
  [[nodiscard]] static std::string of() {
    Layout layout;
    Message message{};
    fields(layout, message);
    return layout.text_;
  }

  template <class Number>
  void number(std::uint32_t tag, const char* name, Number&) {
    add(tag, name, "number");
  }
  template <class Choice>
  void choice(std::uint32_t tag, const char* name, Choice&, Choice last) {
    add(tag, name, "0.." + std::to_string(static_cast<unsigned>(last)));
  }
  void flag(std::uint32_t tag, const char* name, bool&) { add(tag, name, "flag"); }
  void duration(std::uint32_t tag, const char* name, std::chrono::milliseconds&) { add(tag, name, "number"); }
  void text(std::uint32_t tag, const char* name, std::string&, std::size_t longest) {
    add(tag, name, "text " + std::to_string(longest));
  }
  void blob(std::uint32_t tag, const char* name, Bytes&, std::size_t longest) {
    add(tag, name, "bytes " + std::to_string(longest));
  }
  void bytes(std::uint32_t tag, const char* name, std::array<std::uint8_t, 16>&) { add(tag, name, "16 bytes"); }
  void key(std::uint32_t tag, const char* name, seal::PacketKey&) { add(tag, name, "key"); }
  template <class Message>
  void message(std::uint32_t tag, const char* name, Message&) {
    add(tag, name, "{" + of<Message>() + "}");
  }
  template <class Value>
  void maybe(std::uint32_t tag, const char* name, std::optional<Value>&) {
    add(tag, name, "maybe " + of_value<Value>());
  }
  template <class Value>
  void list(std::uint32_t tag, const char* name, std::vector<Value>&, std::size_t most) {
    add(tag, name, std::to_string(most) + " times " + of_value<Value>());
  }
  template <class Value>
  void list(std::uint32_t tag, const char* name, SharedList<Value>&, std::size_t most) {
    std::vector<Value> values;
    list(tag, name, values, most);
  }
  template <class Value>
  void lists(std::uint32_t tag, const char* name, std::vector<std::vector<Value>>&, std::size_t most, std::size_t inner) {
    add(tag, name, std::to_string(most) + " times " + std::to_string(inner) + " times " + of_value<Value>());
  }
  template <class Key, class Value>
  void map(std::uint32_t tag, const char* name, std::map<Key, Value>&, std::size_t most) {
    add(tag, name, std::to_string(most) + " times {" + of<std::pair<Key, Value>>() + "}");
  }
  template <std::uint32_t Capacity>
  void ranks(std::uint32_t tag, const char* name, BasicRankSet<Capacity>&) {
    add(tag, name, Capacity == max_world_size ? "ranks" : std::to_string(Capacity) + " ranks");
  }

 private:
  template <class Value>
  [[nodiscard]] static std::string of_value() {
    if constexpr (is_number<Value>) {
      return "number";
    } else if constexpr (is_text<Value>) {
      return "text";
    } else {
      return "{" + of<Value>() + "}";
    }
  }
  void add(std::uint32_t tag, const char* name, const std::string& type) {
    text_ += std::to_string(tag) + " " + name + ": " + type + "; ";
  }
  std::string text_;
};

template <class Archive>
void fields(Archive& a, Endpoint& m) {
  a.bytes(1, "address", m.address);
  a.number(2, "port", m.port);
  a.number(3, "scope", m.scope);
}

template <class Message>
[[nodiscard]] Bytes encoded(const Message& message) {
  Bytes bytes;
  Writer writer(bytes);
  fields(writer, const_cast<Message&>(message));  // NOLINT(cppcoreguidelines-pro-type-const-cast): a writer only reads
  return bytes;
}

// `check(message)` may correct the message, or throw Nonsense.
template <class Message, class Check>
[[nodiscard]] Parsed<Message> parsed(std::string_view bytes, const Check& check) {
  try {
    Message message{};
    Reader::read({bytes.data(), bytes.size()}, message);
    check(message);
    return message;
  } catch (Nonsense& nonsense) {
    return Parsed<Message>::wrong(std::move(nonsense.what));
  } catch (const protozero::exception&) {
    return Parsed<Message>::wrong("its bytes cannot be decoded as a message of this kind");
  }
}
template <class Message>
[[nodiscard]] Parsed<Message> parsed(std::string_view bytes) {
  return parsed<Message>(bytes, [](const Message&) {});
}

}  // namespace netsum::encoding
