// Checks of a control message's values by themselves, whoever sent it: each returns an empty string, or in one line why the
// value is invalid. No value from outside enters unchecked (control/border.h), in either direction; session/'s functions are
// total on values that pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/endpoint.h"
#include "session/job_view.h"
#include "session/protocol_rules.h"
#include "session/registry.h"

namespace netsum::session {

// Text from strangers goes into one-line errors, logs, tables and JSON: it is UTF-8, adds no lines and no megabytes, and
// leaves the text around it as it is.
inline constexpr std::size_t longest_name = 255;   // of a job, protocol or address
inline constexpr std::size_t longest_text = 2047;  // of a reason
inline constexpr std::chrono::milliseconds longest_straggler_deadline = std::chrono::hours(1);
inline constexpr std::size_t longest_call = 255;     // of a rank, in words
inline constexpr std::size_t most_stated_calls = 4;  // different ones of a job
inline constexpr std::size_t most_lanes = 64;        // an aggregator's threads
inline constexpr std::uint32_t most_slots = 4096;    // per lane
inline constexpr std::size_t most_switches = 4096;   // of a job

[[nodiscard]] bool printable(std::string_view text);
[[nodiscard]] bool is_name(const std::string& text);  // short and printable; may be empty
// Empty, or what is wrong with it.
[[nodiscard]] std::string check_job_name(const std::string& job);
// HOST:PORT, of a name, an IPv4 address or an [IPv6] one.
[[nodiscard]] bool is_address(std::string_view text);
// The text as one printable line of at most `most` bytes.
[[nodiscard]] std::string one_line(std::string_view text, std::size_t most = longest_text);

// Whether packets can be sent there and reach one host: a unicast address, and a port.
[[nodiscard]] bool is_host(const Endpoint& endpoint);
[[nodiscard]] bool is_anywhere(const Endpoint& endpoint);  // all addresses of a host, with a port
[[nodiscard]] bool is_group(const Endpoint& endpoint);     // of IP multicast, with a port

[[nodiscard]] std::string between(const std::string& what, std::uint64_t value, std::uint64_t least, std::uint64_t most);
// Whether the rank is one of the job's.
[[nodiscard]] std::string check_rank(std::uint32_t rank, std::uint32_t world_size);
// Slots per lane that a rank asks for; 0: it leaves them to the aggregator.
[[nodiscard]] std::string check_slots(std::uint32_t slots);
// The first non-empty text.
[[nodiscard]] std::string first_of(std::initializer_list<std::string> errors);

// Independent of the protocol and of the job's other ranks.
[[nodiscard]] std::string check(const JoinRequest& request);
// That a rank which asked for this can work with it; `rules`: of the protocol that it asked for.
[[nodiscard]] std::string check(const Admission& admission, const JoinRequest& asked, const ProtocolRules& rules);
// Independent of the protocol; the protocols' rules check that each switch has a path up.
[[nodiscard]] std::string check(const Placement& placement, std::size_t ranks);
[[nodiscard]] std::string check(const HeartbeatReply& reply);
[[nodiscard]] std::string check(const JobView& view);

}  // namespace netsum::session
