// gRPC channels to aggregators, and their statuses as errors.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "control/client.h"
#include "control/credentials.h"
#include "netsum/error.h"

namespace netsum::control {

// `target`: gRPC's name of options.address. Throws Error: bad_argument, if the CA cannot be read.
[[nodiscard]] std::shared_ptr<grpc::Channel> open_channel(const ClientOptions& options, const std::string& target);

// Adds the proofs of the caller's tokens to a call; `request`: its bytes.
void prove(grpc::ClientContext& context, const Credentials& credentials, const char* call, std::string_view request);
// Whether to make the call once more: the daemon has issued a new challenge.
[[nodiscard]] bool challenged(const grpc::ClientContext& context, const grpc::Status& status, Credentials& credentials);

// The error of a failed call: unreachable, deadline, internal, or refused, with the aggregator's reason.
[[nodiscard]] Error error_of(const grpc::Status& status, const std::string& address);
// The error of a failed call that waited for the connection. Looks why there is none, which may take seconds.
[[nodiscard]] Error error_of_greeting(const grpc::Status& status, const ClientOptions& options);

}  // namespace netsum::control
