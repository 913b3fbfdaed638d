#include "p4app/grpc.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "base/bytes.h"

namespace netsum::p4app {
namespace {

constexpr std::size_t head_bytes = 5;  // of a message: not compressed, and its length in network order
constexpr std::size_t longest_text = 512;
constexpr std::uint32_t most_streams = 16;

nghttp2_nv field(std::string_view name, std::string_view value) {
  // nghttp2 copies both, and does not write to them.
  const auto bytes = [](std::string_view text) { return reinterpret_cast<std::uint8_t*>(const_cast<char*>(text.data())); };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

}  // namespace

struct GrpcEnd::Calls {
  static GrpcEnd& end_of(void* user_data) { return *static_cast<GrpcEnd*>(user_data); }
  static Stream* find(void* user_data, std::int32_t stream) {
    auto& streams = end_of(user_data).streams_;
    const auto found = streams.find(stream);
    return found == streams.end() ? nullptr : &found->second;
  }

  static int begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
    GrpcEnd& end = end_of(user_data);
    if (end.server_) end.streams_.try_emplace(frame->hd.stream_id);
    return 0;
  }

  static int header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_length,
                    const std::uint8_t* value, std::size_t value_length, std::uint8_t, void* user_data) {
    Stream* const stream = find(user_data, frame->hd.stream_id);
    if (stream == nullptr) return 0;
    const std::string_view key(reinterpret_cast<const char*>(name), name_length);
    std::string text(reinterpret_cast<const char*>(value), std::min(value_length, longest_text));
    if (key == ":path") stream->path = std::move(text);
    if (key == "grpc-status") stream->status = std::move(text);
    if (key == "grpc-message") stream->error = std::move(text);
    return 0;
  }

  static int data(nghttp2_session*, std::uint8_t, std::int32_t id, const std::uint8_t* bytes, std::size_t length,
                  void* user_data) {
    Stream* const stream = find(user_data, id);
    if (stream == nullptr) return 0;
    if (stream->received.size() + length > head_bytes + longest_grpc_message) {
      stream->refused = true;
    } else {
      stream->received.append(reinterpret_cast<const char*>(bytes), length);
    }
    return 0;
  }

  static int frame(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
    const bool carries = frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS;
    if (!carries || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return 0;
    Stream* const stream = find(user_data, frame->hd.stream_id);
    if (stream != nullptr) end_of(user_data).on_complete(frame->hd.stream_id, *stream);
    return 0;
  }

  static int closed(nghttp2_session*, std::int32_t id, std::uint32_t, void* user_data) {
    GrpcEnd& end = end_of(user_data);
    const auto found = end.streams_.find(id);
    if (found == end.streams_.end()) return 0;
    Stream stream = std::move(found->second);
    end.streams_.erase(found);
    end.on_closed(id, stream);
    return 0;
  }

  // A server's data end with the status, as trailers; a client's end what it sends.
  static ssize_t read(nghttp2_session* session, std::int32_t id, std::uint8_t* to, std::size_t length, std::uint32_t* flags,
                      nghttp2_data_source*, void* user_data) {
    Stream* const stream = find(user_data, id);
    if (stream == nullptr) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    const std::size_t bytes = std::min(length, stream->out.size() - stream->sent);
    std::memcpy(to, stream->out.data() + stream->sent, bytes);
    stream->sent += bytes;
    if (stream->sent < stream->out.size()) return static_cast<ssize_t>(bytes);
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (end_of(user_data).server_) {
      *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
      const nghttp2_nv status = field("grpc-status", "0");
      nghttp2_submit_trailer(session, id, &status, 1);
    }
    return static_cast<ssize_t>(bytes);
  }
};

GrpcEnd::GrpcEnd(bool server) : server_(server) {
  nghttp2_session_callbacks* callbacks = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) throw std::bad_alloc();
  nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, Calls::begin_headers);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, Calls::header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Calls::data);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Calls::frame);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Calls::closed);
  const int made = server ? nghttp2_session_server_new(&session_, callbacks, this)
                          : nghttp2_session_client_new(&session_, callbacks, this);
  nghttp2_session_callbacks_del(callbacks);
  if (made != 0) throw std::bad_alloc();
  const nghttp2_settings_entry settings{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, most_streams};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, &settings, server ? 1 : 0);
}

GrpcEnd::~GrpcEnd() {
  nghttp2_session_del(session_);
}

bool GrpcEnd::receive(std::string_view bytes) {
  const auto* const from = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return nghttp2_session_mem_recv(session_, from, bytes.size()) == static_cast<ssize_t>(bytes.size()) &&
         (nghttp2_session_want_read(session_) != 0 || nghttp2_session_want_write(session_) != 0);
}

std::string GrpcEnd::take_output() {
  std::string output;
  while (true) {
    const std::uint8_t* bytes = nullptr;
    const ssize_t length = nghttp2_session_mem_send(session_, &bytes);
    if (length <= 0) return output;
    output.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
  }
}

std::optional<std::string> GrpcEnd::message_of(const std::string& received) {
  if (received.size() < head_bytes || received[0] != 0) return std::nullopt;
  const auto length = load_be<std::uint32_t>(reinterpret_cast<const std::byte*>(received.data()) + 1);
  if (received.size() != head_bytes + length) return std::nullopt;
  return received.substr(head_bytes);
}

std::string GrpcEnd::framed(std::string_view message) {
  std::string bytes(head_bytes, '\0');
  store_be(reinterpret_cast<std::byte*>(bytes.data()) + 1, static_cast<std::uint32_t>(message.size()));
  return bytes.append(message);
}

// ---- server

std::vector<GrpcServerEnd::Call> GrpcServerEnd::take_calls() {
  return std::exchange(calls_, {});
}

std::vector<std::int32_t> GrpcServerEnd::take_gone() {
  return std::exchange(gone_, {});
}

std::vector<std::int32_t> GrpcServerEnd::open() const {
  std::vector<std::int32_t> streams;
  for (const auto& [stream, of] : streams_) streams.push_back(stream);
  return streams;
}

void GrpcServerEnd::on_complete(std::int32_t stream, Stream& of) {
  std::optional<std::string> message = of.refused ? std::nullopt : message_of(of.received);
  if (!message) return answer(stream, GrpcStatus::invalid_argument, "no single uncompressed message of at most 4096 bytes");
  calls_.push_back({stream, of.path, std::move(*message)});
}

void GrpcServerEnd::on_closed(std::int32_t stream, Stream&) {
  std::erase_if(calls_, [&](const Call& call) { return call.stream == stream; });
  gone_.push_back(stream);
}

void GrpcServerEnd::answer(std::int32_t stream, GrpcStatus status, const std::string& bytes) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  const std::string code = std::to_string(static_cast<int>(status));
  const std::array fields{field(":status", "200"), field("content-type", "application/grpc"), field("grpc-status", code),
                          field("grpc-message", bytes)};
  if (status != GrpcStatus::ok) {
    nghttp2_submit_response(session_, stream, fields.data(), fields.size(), nullptr);
    return;
  }
  found->second.out = framed(bytes);
  nghttp2_data_provider source{};
  source.read_callback = Calls::read;
  nghttp2_submit_response(session_, stream, fields.data(), 2, &source);
}

// ---- client

void GrpcClientEnd::call(std::string_view path, std::string_view message) {
  const std::array fields{field(":method", "POST"),     field(":scheme", "http"),
                          field(":path", path),         field(":authority", authority_),
                          field("te", "trailers"),      field("content-type", "application/grpc"),
                          field("user-agent", "netsum")};
  nghttp2_data_provider source{};
  source.read_callback = Calls::read;
  const std::int32_t stream = nghttp2_submit_request(session_, nullptr, fields.data(), fields.size(), &source, nullptr);
  if (stream < 0) {
    result_ = Result{false, "the connection takes no more calls"};
    return;
  }
  streams_[stream].out = framed(message);
}

std::optional<GrpcClientEnd::Result> GrpcClientEnd::take_result() {
  return std::exchange(result_, std::nullopt);
}

void GrpcClientEnd::on_closed(std::int32_t, Stream& of) {
  const std::optional<std::string> message = of.refused ? std::nullopt : message_of(of.received);
  if (of.status == "0" && message) {
    result_ = Result{true, *message};
  } else {
    result_ = Result{false, of.error.empty() ? "the call failed, with gRPC's status " + of.status : of.error};
  }
}

}  // namespace netsum::p4app
