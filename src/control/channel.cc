#include "control/channel.h"

#include <fstream>
#include <sstream>

#include "control/diagnosis.h"
#include "session/check.h"

namespace netsum::control {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::bad_argument, "cannot read '" + path + "'");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::shared_ptr<grpc::Channel> open_channel(const ClientOptions& options, const std::string& target) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!options.tls_ca.empty()) {
    credentials =
        grpc::SslCredentials({.pem_root_certs = read_file(options.tls_ca), .pem_private_key = {}, .pem_cert_chain = {}});
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);  // the time a connection may take: a busy host answers late
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

void prove(grpc::ClientContext& context, const Credentials& credentials, const char* call, std::string_view request) {
  for (const auto& [key, proof] : credentials.proofs(call, request)) context.AddMetadata(key, proof);
}

bool challenged(const grpc::ClientContext& context, const grpc::Status& status, Credentials& credentials) {
  if (status.error_code() != grpc::StatusCode::UNAUTHENTICATED) return false;
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto challenge = metadata.find(challenge_key);
  return challenge != metadata.end() && credentials.learn({challenge->second.data(), challenge->second.size()});
}

Error error_of(const grpc::Status& status, const std::string& address) {
  const std::string at = "aggregator " + address, words = session::one_line(status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return {ErrorCode::unreachable, at + " is not reachable: is netsum running there, and the port open?"};
    case grpc::StatusCode::ABORTED:  // it is busy: to callers that ask again, as if it had not answered
      return {ErrorCode::unreachable, at + ": " + words};
    case grpc::StatusCode::DEADLINE_EXCEEDED:  // the aggregator's own reason, or gRPC's "Deadline Exceeded"
      return {ErrorCode::deadline, at + ": " + (words == "Deadline Exceeded" ? "no answer in time" : words)};
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::CANCELLED:
      return {ErrorCode::internal, at + ": " + words};
    default:
      return {ErrorCode::refused, at + " refused: " + words};
  }
}

Error error_of_greeting(const grpc::Status& status, const ClientOptions& options) {
  const bool unreachable =
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED || status.error_code() == grpc::StatusCode::UNAVAILABLE;
  if (!unreachable) return error_of(status, options.address);
  return {ErrorCode::unreachable,
          "aggregator " + options.address + " is not reachable: " + diagnose(options.address, options.tls_ca)};
}

}  // namespace netsum::control
