#include "session/check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/numbers.h"

namespace netsum::session {
namespace {

// IPv4 addresses, as in Endpoint.
bool is_mapped(const std::array<std::uint8_t, 16>& address) {
  constexpr std::uint8_t prefix[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(std::begin(prefix), std::end(prefix), address.begin());
}

std::string unprintable(const std::string& what, std::size_t most = longest_name) {
  return what + " is longer than " + std::to_string(most) + " bytes, or not printable";
}

// How many bytes the first character of a text has. 0: it is not UTF-8, or a control character, or one that ends a line or
// turns the direction of what is behind it.
std::size_t printable_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  char32_t code = first & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::array<char32_t, 5> least = {0, 0, 0xa0, 0x800, 0x10000};  // what is less is C1, or has a shorter form
  const auto within = [&](char32_t from, char32_t to) { return code >= from && code <= to; };
  const bool surrogate = within(0xd800, 0xdfff), line = within(0x2028, 0x2029),
             turns = code == 0x61c || within(0x200e, 0x200f) || within(0x202a, 0x202e) || within(0x2066, 0x2069);
  return code < least[bytes] || code > 0x10ffff || surrogate || line || turns ? 0 : bytes;
}

}  // namespace

std::string between(const std::string& what, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (value >= least && value <= most) return "";
  return what + " " + std::to_string(value) + " is not between " + std::to_string(least) + " and " + std::to_string(most);
}

std::string check_rank(std::uint32_t rank, std::uint32_t world_size) {
  if (rank < world_size) return "";
  return "rank " + std::to_string(rank) + " is not below the world size " + std::to_string(world_size);
}

std::string check_slots(std::uint32_t slots) {
  if (slots == 0 || (std::has_single_bit(slots) && slots <= most_slots)) return "";
  return std::to_string(slots) + " slots per lane are not a power of two up to " + std::to_string(most_slots);
}

std::string first_of(std::initializer_list<std::string> errors) {
  for (const std::string& error : errors) {
    if (!error.empty()) return error;
  }
  return "";
}

std::string check(const Placement& placement, std::size_t ranks) {
  const std::size_t switches = placement.switches.size();
  if (switches > most_switches) return std::to_string(switches) + " switches are too many for a job";
  if (placement.parent_of_switch.size() != switches || placement.switch_of_rank.size() != ranks) {
    return "the placement is inconsistent: ranks " + std::to_string(placement.switch_of_rank.size()) + " of " +
           std::to_string(ranks) + ", switches " + std::to_string(switches) + ", parents of switches " +
           std::to_string(placement.parent_of_switch.size());
  }
  const auto named = [](const std::string& name) { return !name.empty() && is_name(name); };
  if (!std::all_of(placement.switches.begin(), placement.switches.end(), named))
    return "the address of a switch is empty, longer than " + std::to_string(longest_name) + " bytes, or not printable";
  return "";
}

bool printable(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = printable_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

bool is_name(const std::string& text) {
  return text.size() <= longest_name && printable(text);
}

std::string check_job_name(const std::string& job) {
  if (job.empty()) return "the job name is empty";
  if (is_name(job)) return "";
  return "the job name is longer than " + std::to_string(longest_name) +
         " bytes, is not UTF-8, or has line breaks or other control characters";
}

bool is_address(std::string_view text) {
  const auto all = [](std::string_view part, std::string_view others) {
    return !part.empty() && std::all_of(part.begin(), part.end(), [&](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || others.find(c) != others.npos;
    });
  };
  const std::size_t colon = text.rfind(':');
  if (text.size() > longest_name || colon == text.npos) return false;
  const std::string_view host = text.substr(0, colon);
  if (!parse_number<std::uint16_t>(text.substr(colon + 1), 1)) return false;
  return host.starts_with('[') && host.ends_with(']') ? all(host.substr(1, host.size() - 2), ":.%-_") : all(host, ".-_");
}

std::string one_line(std::string_view text, std::size_t most) {
  std::string line;
  while (!text.empty()) {
    const std::size_t bytes = printable_bytes(text), taken = std::max<std::size_t>(bytes, 1);
    if (line.size() + taken > most) break;
    line += bytes == 0 ? " " : text.substr(0, bytes);
    text.remove_prefix(taken);
  }
  return line;
}

bool is_anywhere(const Endpoint& endpoint) {
  const auto& a = endpoint.address;
  return endpoint.port != 0 &&
         std::all_of(a.begin() + (is_mapped(a) ? 12 : 0), a.end(), [](auto byte) { return byte == 0; });
}

bool is_group(const Endpoint& endpoint) {
  const auto& a = endpoint.address;
  return endpoint.port != 0 && (is_mapped(a) ? a[12] >= 224 && a[12] < 240 : a[0] == 0xff);
}

bool is_host(const Endpoint& endpoint) {
  const auto& a = endpoint.address;
  const bool all = is_mapped(a) && std::all_of(a.begin() + 12, a.end(), [](auto byte) { return byte == 0xff; });
  return endpoint.port != 0 && !all && !is_anywhere(endpoint) && !is_group(endpoint);
}

std::string check(const JoinRequest& request) {
  if (std::string error =
          first_of({check_job_name(request.job), between("world size", request.world_size, 1, max_world_size)});
      !error.empty()) {
    return error;
  }
  if (std::string error = check_rank(request.rank, request.world_size); !error.empty()) return error;
  if (!is_name(request.protocol)) return unprintable("the protocol name");
  if (!is_name(request.switch_address)) return unprintable("the address of the rank's switch");
  if (request.aggregators.size() > most_aggregators ||
      !std::all_of(request.aggregators.begin(), request.aggregators.end(), is_name)) {
    return unprintable("the list of aggregators has more than " + std::to_string(most_aggregators) +
                       " entries, or an address in it");
  }
  if (request.survivors > request.world_size || (request.survivors != 0 && !request.recovers)) {
    return "a job of " + std::to_string(request.world_size) + " ranks cannot continue with " +
           std::to_string(request.survivors) + ": survivors are at most all ranks, and require recovery";
  }
  if (request.aggregators.size() > 1 && request.survivors != 0 && request.survivors * 2 <= request.world_size) {
    return "a job of " + std::to_string(request.world_size) + " ranks at several aggregators cannot continue with " +
           std::to_string(request.survivors) +
           ": a network that falls in two could leave two halves that both continue; at least " +
           std::to_string(request.world_size / 2 + 1) + " survivors are needed";
  }
  const SiteSet all = SiteSet::first(static_cast<std::uint32_t>(request.aggregators.size()));
  const bool reaches = request.site < most_aggregators && request.reached.contains(request.site) &&
                       request.reached.minus(all).empty() && request.standbys < request.aggregators.size();
  if (request.recovers ? !reaches : !request.reached.empty() || request.standbys != 0)
    return "the aggregators that the rank reaches are not its job's";
  if (request.straggler_deadline.count() < 0 || request.straggler_deadline > longest_straggler_deadline ||
      (request.straggler_deadline.count() != 0 && request.survivors == 0)) {
    return "a straggler deadline requires survivors, and is at most " + in_seconds(longest_straggler_deadline);
  }
  if (!request.aside.minus(RankSet::first(request.world_size)).empty() || request.aside.intersects(request.members))
    return "the late ranks of the job's last life are not its ranks";
  if (request.life == UINT32_MAX) return "the number of the job's last life is impossible";
  if (!request.members.minus(RankSet::first(request.world_size)).empty())
    return "the ranks of the job's last life are not its ranks";
  if (!request.progress.sound()) return "the rank's numbers of finished operations contradict each other";
  if (std::string error = check_slots(request.slots_fixed); !error.empty()) return error;
  if (request.endpoints.size() > most_lanes) {
    return "the rank has " + std::to_string(request.endpoints.size()) + " lanes, more than " + std::to_string(most_lanes);
  }
  if (!std::all_of(request.endpoints.begin(), request.endpoints.end(), is_host)) {
    return "an address of rank " + std::to_string(request.rank) + " is not a unicast address with a port";
  }
  if (!is_name(request.process.host)) return unprintable("the host name of the rank");
  if (!is_name(request.why_not_local)) return unprintable("the reason against shared memory");
  return "";
}

namespace {

// What a protocol sees of a request: a rank is its place among the members.
JoinRequest among_members(JoinRequest asked, std::uint32_t ranks, std::uint32_t place) {
  asked.world_size = ranks;
  asked.rank = place;
  return asked;
}

}  // namespace

std::string check(const Admission& admission, const JoinRequest& asked, const ProtocolRules& rules) {
  if (asked.rank >= asked.world_size) return check_rank(asked.rank, asked.world_size);
  const RankSet& members = admission.resumption.members;
  const RankSet all = RankSet::first(asked.world_size);
  if (!admission.aside.minus(all).empty() || admission.aside.intersects(members) ||
      (asked.straggler_deadline.count() == 0 && !admission.aside.empty())) {
    return "the admission names late ranks that the job does not have";
  }
  const bool aside = admission.aside.contains(asked.rank);
  const bool named = (aside || members.contains(asked.rank)) && members.minus(all).empty() &&
                     members.size() >= asked.survivors && admission.life > asked.life;
  if (asked.survivors == 0 ? !members.empty() : !named) {
    return "the admission does not name the ranks that continue";
  }
  if (aside) return "";  // it is not for this rank
  if (admission.job_epoch == 0 || admission.rank_epoch == 0) return "the admission has no epoch";
  const bool serves = admission.sites.contains(asked.site) && admission.sites.minus(asked.reached).empty();
  if (asked.recovers ? !serves : !admission.sites.empty())
    return "the admission does not name the aggregators that this rank reaches";
  // Everybody counts the members from here on.
  const std::uint32_t ranks = members.empty() ? asked.world_size : members.size();
  const std::uint32_t place = members.empty() ? asked.rank : members.place_of(asked.rank);
  const std::vector<std::uint32_t>& epochs = admission.rank_epochs;
  if (epochs.size() != ranks) {
    return "the admission has " + std::to_string(epochs.size()) + " rank epochs for " + std::to_string(ranks) + " ranks";
  }
  if (epochs[place] != admission.rank_epoch)
    return "the admission has two different epochs for rank " + std::to_string(asked.rank);
  if (std::set<std::uint32_t> distinct(epochs.begin(), epochs.end());
      distinct.size() != epochs.size() || distinct.contains(0)) {
    return "the admission has epoch 0, or the same epoch for two ranks";
  }
  if (admission.packet_elements > asked.packet_elements) {
    return "the admission has packets of " + std::to_string(admission.packet_elements) +
           " elements, and this rank asked for at most " + std::to_string(asked.packet_elements);
  }
  const bool other_slots = asked.slots_fixed != 0 && admission.slots != asked.slots_fixed;
  if (other_slots || admission.slots > most_slots || !std::has_single_bit(admission.slots)) {
    return "the admission has " + std::to_string(admission.slots) +
           " slots per lane, which this rank did not ask for or which are not possible";
  }
  if (admission.lanes == 0 || admission.lanes > asked.endpoints.size()) {
    return "the admission has " + std::to_string(admission.lanes) + " lanes, and this rank " +
           std::to_string(asked.endpoints.size());
  }
  if (!asked.packet_elements_measured && admission.packet_elements != asked.packet_elements) {
    return "the admission has packets of " + std::to_string(admission.packet_elements) +
           " elements, and this rank asked for " + std::to_string(asked.packet_elements);
  }
  const Placement& placement = admission.placement;
  if (std::string error = first_of({rules.check_packet(admission.packet_elements), check(placement, ranks)});
      !error.empty()) {
    return error;
  }
  if (!rules.switches && !placement.switches.empty())
    return "the admission has switches, and protocol " + rules.name + " has none";
  if (std::string error = rules.check_placement(placement); !error.empty()) return error;
  const std::uint32_t at = placement.switch_of_rank[place];
  if (asked.switch_address != (at == Placement::at_server ? "" : placement.switches.at(at))) {
    return "the admission places rank " + std::to_string(asked.rank) + " at another switch than the one it named";
  }
  const Terms terms{ranks, admission.packet_elements, admission.slots, placement, admission.own};
  if (std::string error = check_admission(rules, admission, among_members(asked, ranks, place)); !error.empty())
    return error;
  if (std::string error = check_terms(rules, terms); !error.empty()) return error;  // reads what was just checked
  if (std::string error = stream::check(admission.resumption, asked.progress, ranks); !error.empty()) return error;
  const bool sealed = admission.security != PacketSecurity::none;
  if (admission.security < asked.security && !admission.local) {
    return std::string("the admission protects packets by ") + to_string(admission.security) + ", and this rank asked for " +
           to_string(asked.security);
  }
  if (static_cast<bool>(admission.results) != sealed)
    return sealed ? "the admission lacks the job key" : "the admission has a job key, and the job has no packet keys";
  const bool keys = static_cast<bool>(admission.keys.up) && static_cast<bool>(admission.keys.down);
  const bool no_keys = !admission.keys.up && !admission.keys.down;
  if (!(sealed && !asked.near ? keys : no_keys))
    return "the admission lacks keys of this rank, or has keys that this rank does not need";
  if (admission.local && asked.local_ticket == 0) return "the admission uses shared memory, and this rank did not offer it";
  if (admission.why_not_local.size() > longest_text || !printable(admission.why_not_local)) {
    return unprintable("the reason against shared memory", longest_text);
  }
  return "";
}

std::string check(const HeartbeatReply& reply) {
  if (reply.reason.size() > longest_text || !printable(reply.reason)) return unprintable("the reason", longest_text);
  if (reply.warning.size() > longest_text || !printable(reply.warning)) return unprintable("the warning", longest_text);
  if (!is_name(reply.lost_switch)) return unprintable("the address of the lost switch");
  if (reply.state == HeartbeatReply::State::failed && reply.reason.empty()) return "the failure has no reason";
  if (reply.lost && *reply.lost >= max_world_size) return "the lost rank " + std::to_string(*reply.lost) + " is too large";
  for (const RankCall& stated : reply.calls) {
    if (stated.rank >= max_world_size) return "rank " + std::to_string(stated.rank) + " of a call is too large";
    if (stated.call.size() > longest_call || !printable(stated.call)) return unprintable("a rank's call", longest_call);
  }
  return "";
}

std::string check(const JobView& view) {
  if (view.mismatch.size() > longest_text || !printable(view.mismatch)) {
    return unprintable("the text about different calls", longest_text);
  }
  return view.hopeless.size() <= longest_text && printable(view.hopeless)
             ? ""
             : unprintable("why the job cannot continue", longest_text);
}

}  // namespace netsum::session
