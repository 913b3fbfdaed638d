// The border between bytes from outside and the structures of session/. Every message, in either direction, is parsed here
// into a value that has passed all checks of the message by itself (session/check.h), or into a one-line reason why it is
// wrong.
#pragma once

#include <string_view>

#include "control/bytes.h"
#include "control/messages.h"
#include "encoding/parsed.h"
#include "session/protocol_rules.h"
#include "session/registry.h"
#include "telemetry/report.h"

namespace netsum::control {

using encoding::Parsed;

// Any message of messages.h but an admission, which is checked against its request.
template <class Message>
[[nodiscard]] Parsed<Message> parse(std::string_view bytes);
// `rules`: of the protocol that was asked for.
[[nodiscard]] Parsed<session::Admission> parse_admission(std::string_view bytes, const session::JoinRequest& asked,
                                                         const session::ProtocolRules& rules);
[[nodiscard]] Parsed<telemetry::Report> parse_report(std::string_view bytes);

// The reverse. Texts from strangers leave as one line each.
template <class Message>
[[nodiscard]] Bytes write(const Message& message);
[[nodiscard]] Bytes write_report(const telemetry::Report& report);

}  // namespace netsum::control
