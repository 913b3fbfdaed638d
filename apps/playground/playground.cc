#include "apps/playground/playground.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "wire/epochs.h"

namespace netsum::playground {
namespace {

using wire::switchml::Type;

constexpr sim::HostId at_the_switch = Playground::ranks;
constexpr Time beginning{std::chrono::seconds(1)};
constexpr Duration on_a_link = std::chrono::milliseconds(10), later = std::chrono::milliseconds(50);
constexpr std::size_t most_packets = 60, most_lines = 60;

Endpoint endpoint_of(sim::HostId host) {
  return model::host(host == at_the_switch ? model::switch_host : host);
}
sim::HostId host_of(const Endpoint& endpoint) {
  return endpoint == model::host(model::switch_host) ? at_the_switch : endpoint.address[15];
}
std::string name_of(sim::HostId host) {
  return host == at_the_switch ? "the switch" : "rank " + std::to_string(host);
}

std::uint32_t value(std::size_t rank, std::size_t chunk) {
  constexpr std::uint32_t powers[Playground::ranks] = {1, 10, 100};
  return static_cast<std::uint32_t>(chunk + 1) * powers[rank];
}
std::string name_of_chunk(std::uint32_t chunk) {
  return "chunk " + std::to_string(chunk + 1);
}

// Whether some ranks' values of the chunk, each once, have this sum.
bool counts_once(std::uint32_t sum, std::uint32_t chunk) {
  for (unsigned some = 0; some < 1U << Playground::ranks; ++some) {
    std::uint32_t of_some = 0;
    for (std::size_t rank = 0; rank < Playground::ranks; ++rank) of_some += (some >> rank & 1) * value(rank, chunk);
    if (of_some == sum) return true;
  }
  return false;
}

sim::Scenario faults_of(std::uint32_t seed) {
  sim::Scenario scenario;
  scenario.seed = seed;
  scenario.links.least_delay = on_a_link;
  scenario.links.most_delay = 2 * on_a_link;
  scenario.links.loss = 0.15;
  scenario.links.duplicate = 0.15;
  scenario.links.late = 0.2;
  scenario.links.latest = std::chrono::milliseconds(200);
  return scenario;
}

std::string object(std::initializer_list<std::pair<const char*, std::string>> fields) {
  std::string out;
  for (const auto& [name, json] : fields) out += (out.empty() ? "{\"" : ",\"") + std::string(name) + "\":" + json;
  return out + "}";
}
std::string quoted(const std::string& text) {
  return '"' + text + '"';  // ours: nothing to escape
}
std::string truth(bool is) {
  return is ? "true" : "false";
}
std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}
template <class Each>
std::string list(std::size_t count, const Each& each) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) out += (i == 0 ? "" : ",") + each(i);
  return "[" + out + "]";
}

}  // namespace

Playground::Playground(Rule rule, std::uint32_t seed)
    : switch_(std::in_place_type<model::RealSwitch>, model::Setup{ranks, slots, {}}), now_(beginning) {
  checking = true;
  if (rule == Rule::published) switch_.emplace<model::Published<false>>(model::Setup{ranks, slots, {}});
  if (seed != 0) network_.emplace(faults_of(seed), ranks + 1, tally_);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    switchml::WorkerConfig config;
    config.job_epoch = model::job_epoch;
    config.rank = rank;
    config.world_size = ranks;
    config.rank_epoch = model::rank_epochs(ranks)[rank];
    config.folded_epochs = wire::fold_epochs(model::rank_epochs(ranks));
    config.packet_elements = model::packet_elements;
    config.slots = slots;
    config.aggregator = endpoint_of(at_the_switch);
    config.initial_timeout = config.min_timeout = 6 * on_a_link;
    ranks_.emplace_back(config);
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::uint32_t>& tensor = ranks_[rank].tensor;
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = value(rank, i / model::packet_elements);
    stream::Operation operation;
    operation.dtype = DType::int32;
    operation.elements = tensor.size();
    operation.data = tensor.data();
    model::RecordingSink out;
    if (!ranks_[rank].worker.submit(operation, now_, out)) throw std::logic_error("the worker refused its operation");
    send(rank, out);
  }
}

double Playground::ms(Time time) const {
  return std::chrono::duration<double, std::milli>(time - beginning).count();
}

void Playground::note(const std::string& what) {
  log_.push_back(number(ms(now_)).substr(0, number(ms(now_)).find('.')) + " ms: " + what);
  if (log_.size() > most_lines) log_.pop_front();
}

std::uint32_t Playground::exact(std::size_t chunk) {
  std::uint32_t sum = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) sum += value(rank, chunk);
  return sum;
}

std::uint32_t Playground::sum(std::size_t rank, std::size_t chunk) const {
  const std::uint32_t there = ranks_[rank].tensor[chunk * model::packet_elements];
  return there == value(rank, chunk) ? 0 : there;
}

bool Playground::complete() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.worker.idle(); });
}

Playground::About Playground::about(const Packet& packet) {
  About about;
  wire::switchml::Common common;
  wire::switchml::ChunkPacket chunk;
  wire::switchml::WaitingPacket waiting{};
  if (wire::switchml::parse_common(packet.bytes, common) != wire::ParseError::none) return about;
  about.type = common.type;
  if (wire::switchml::parse_chunk(packet.bytes, common, chunk) == wire::ParseError::none) {
    const wire::switchml::ChunkHeader& header = chunk.header;
    about = {common.type, header.chunk, header.slot, header.version, load_le<std::uint32_t>(chunk.payload.data())};
  } else if (wire::switchml::parse_waiting(packet.bytes, common, waiting) == wire::ParseError::none) {
    about.chunk = waiting.chunk;
  }
  return about;
}

std::string Playground::words(const Packet& packet) {
  const About says = about(packet);
  const std::string chunk = name_of_chunk(says.chunk);
  if (says.type == Type::contribution) return name_of(packet.from) + "'s " + chunk;
  return (says.type == Type::result ? "the sum of " + chunk : "'waiting' for " + chunk) + " to " + name_of(packet.to);
}

Playground::View Playground::view(std::size_t slot, std::size_t version) const {
  View view;
  if (const auto* const real = std::get_if<model::RealSwitch>(&switch_)) {
    const switchml::Switch::Job& job = real->job();
    const auto& held = job.slots[slot * 2 + version];
    view = {held.used, held.complete, held.chunk, 0, {}};
    if (held.used) view.sum = load_le<std::uint32_t>(job.memory_of(held) + switchml::payload_at);
    for (std::size_t rank = 0; rank < ranks; ++rank) view.seen[rank] = job.seen.contains(slot * 2 + version, rank);
  } else {
    const auto& held = std::get<model::Published<false>>(switch_).version(slot, version);
    const bool used = held.identity.first != 0;
    view = {used, used && held.count == 0, held.identity.second, used ? held.sums[0] : 0, {}};
    std::copy_n(held.seen.begin(), ranks, view.seen.begin());
  }
  return view;
}

void Playground::send(sim::HostId from, model::RecordingSink& out) {
  for (auto& [source, to, bytes, multicast] : out.take()) {
    Packet packet{0, from, host_of(to), now_, now_, false, std::move(bytes)};
    const auto leave = [&](Time due, bool lost) {
      packet.number = packets_sent_++;
      packet.due = due;
      packet.lost = lost;
      packets_.push_back(packet);
    };
    if (!network_) {  // links of different lengths, so that packets arrive one by one
      leave(now_ + on_a_link + std::chrono::milliseconds(std::min(from, packet.to)), false);
      continue;
    }
    const auto arrivals = network_->send(now_, from, packet.to, endpoint_of(from), to, packet.bytes, true);
    for (const auto& arrival : arrivals) leave(arrival.at, false);
    if (arrivals.empty()) leave(now_ + on_a_link / 2, true);
  }
}

void Playground::at_switch(const Packet& packet) {
  const About says = about(packet);
  const View before = view(says.slot, says.version);
  const RxView received{packet.bytes, endpoint_of(packet.from)};
  model::RecordingSink out;
  std::visit([&](auto& rule) { rule.on_packet(received, endpoint_of(at_the_switch), now_, out); }, switch_);
  const View after = view(says.slot, says.version);
  const std::size_t answers = out.sent().size();
  std::string what = "the switch ";
  if (after != before) {
    what += "adds " + words(packet) + " to slot " + std::to_string(says.slot) + '/' + std::to_string(says.version);
    if (answers != 0) what += ", and sends the sum, " + std::to_string(after.sum) + ", to all";
  } else {
    what +=
        answers != 0 ? "has " + words(packet) + " already, and answers" : "ignores " + words(packet) + ", which it has had";
  }
  note(what);
  send(at_the_switch, out);
}

void Playground::at_rank(const Packet& packet) {
  const About says = about(packet);
  const std::uint32_t before = sum(packet.to, says.chunk);
  const RxView received{packet.bytes, endpoint_of(packet.from)};
  model::RecordingSink out;
  ranks_[packet.to].worker.on_packets({&received, 1}, now_, out);
  const std::uint32_t after = sum(packet.to, says.chunk);
  if (after != before) {
    note(name_of(packet.to) + " takes " + std::to_string(after) + " for the sum of " + name_of_chunk(says.chunk) +
         (after == exact(says.chunk) ? "" : ", which is wrong: it is " + std::to_string(exact(says.chunk))));
  } else {
    note(name_of(packet.to) + (says.type == Type::result ? " has " : " reads ") + words(packet) +
         (says.type == Type::result ? " already" : ""));
  }
  send(packet.to, out);
}

void Playground::arrive(const Packet& packet) {
  packet.to == at_the_switch ? at_switch(packet) : at_rank(packet);
}

Playground::Next Playground::find_next() const {
  Next next;
  for (std::size_t i = 0; i < packets_.size(); ++i) {
    if (packets_[i].due < next.at) next = {packets_[i].due, i, true};
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Time at = ranks_[rank].worker.next_timeout();
    if (at < next.at) next = {at, rank, false};
  }
  return next;
}

std::optional<double> Playground::next() const {
  const Next next = find_next();
  return next.at == never ? std::nullopt : std::optional(ms(std::max(now_, next.at)));
}

bool Playground::step(Time limit) {
  const Next next = find_next();
  if (next.at == never || next.at > limit) return false;
  now_ = std::max(now_, next.at);
  if (next.is_packet) {
    const Packet packet = packets_[next.which];
    packets_.erase(packets_.begin() + static_cast<std::ptrdiff_t>(next.which));
    packet.lost ? note("the network loses " + words(packet)) : arrive(packet);
    return true;
  }
  model::RecordingSink out;
  ranks_[next.which].worker.on_timer(now_, out);
  if (!out.sent().empty()) note("rank " + std::to_string(next.which) + " has waited too long, and repeats");
  send(static_cast<sim::HostId>(next.which), out);
  return true;
}

bool Playground::act(std::string_view actions) {
  while (!actions.empty()) {
    const std::size_t end = std::min(actions.find('.'), actions.size());
    if (!act_once(actions.substr(0, end))) return false;
    actions.remove_prefix(std::min(end + 1, actions.size()));
  }
  return true;
}

bool Playground::act_once(std::string_view action) {
  std::uint32_t which = 0;
  const char* const end = action.data() + action.size();
  if (action == "s") return step(never);
  if (action.size() < 2) return false;
  if (const auto read = std::from_chars(action.data() + 1, end, which); read.ptr != end || read.ec != std::errc())
    return false;
  if (action[0] == 'w') {
    const Time until = now_ + std::chrono::milliseconds(std::min(which, 1'000'000U));
    while (step(until)) {
    }
    now_ = until;
    return true;
  }
  const auto at = std::find_if(packets_.begin(), packets_.end(), [&](const Packet& each) { return each.number == which; });
  if (at == packets_.end()) return false;
  if (action[0] == 'd' || action[0] == 'x') {
    const Packet packet = *at;
    packets_.erase(at);
    action[0] == 'd' ? arrive(packet) : note(words(packet) + " is lost");
  } else if (action[0] == 'c') {
    if (packets_.size() >= most_packets) return false;
    Packet copy = *at;
    copy.number = packets_sent_++;
    copy.due += on_a_link / 2;
    note(words(copy) + " is copied");
    packets_.push_back(std::move(copy));
  } else if (action[0] == 'l') {
    at->due = std::max(now_, at->due) + later;
    note(words(*at) + " is delayed");
  } else {
    return false;
  }
  return true;
}

std::string Playground::find(sim::HostId from, sim::HostId to, Type type, std::uint32_t chunk) const {
  for (const Packet& packet : packets_) {
    const About says = about(packet);
    if (packet.from == from && packet.to == to && says.type == type && says.chunk == chunk)
      return std::to_string(packet.number);
  }
  return "";
}

std::string Playground::walk(unsigned step) const {
  const std::string first = find(0, at_the_switch, Type::contribution, 0),
                    next = find(0, at_the_switch, Type::contribution, slots),
                    result = find(at_the_switch, 0, Type::result, step == 1 ? 0 : slots);
  const auto copied = [](const std::string& packet) { return "c" + packet + ".c" + packet + ".d" + packet; };
  const auto arrives = [](const std::string& packet) { return packet.empty() ? packet : "d" + packet; };
  switch (step) {
    case 0:
      return copied(first) + ".d" + find(1, at_the_switch, Type::contribution, 0) + ".d" +
             find(2, at_the_switch, Type::contribution, 0);
    case 1:
      return arrives(result);
    case 2:
      return copied(next);
    case 3:
    case 5:
      return arrives(first);
    case 4:
    case 6:
      return arrives(next);
    default:
      return arrives(result);
  }
}

std::string Playground::state() const {
  const auto version = [&](std::size_t slot, std::size_t which) {
    const View view = this->view(slot, which);
    return object({{"used", truth(view.used)},
                   {"complete", truth(view.complete)},
                   {"chunk", std::to_string(view.chunk)},
                   {"sum", std::to_string(view.sum)},
                   {"once", truth(!view.used || counts_once(view.sum, view.chunk))},
                   {"seen", list(ranks, [&](std::size_t rank) { return truth(view.seen[rank]); })}});
  };
  const auto rank = [&](std::size_t which) {
    const Time repeats = ranks_[which].worker.next_timeout();
    return object({{"sums", list(chunks, [&](std::size_t chunk) { return std::to_string(sum(which, chunk)); })},
                   {"own", list(chunks, [&](std::size_t chunk) { return std::to_string(value(which, chunk)); })},
                   {"repeats", repeats == never ? "null" : number(ms(repeats))}});
  };
  const auto packet = [&](std::size_t which) {
    const Packet& it = packets_[which];
    const About says = about(it);
    const char* const kind = says.type == Type::contribution ? "values" : says.type == Type::result ? "sum" : "waiting";
    return object({{"number", std::to_string(it.number)},
                   {"from", std::to_string(it.from)},
                   {"to", std::to_string(it.to)},
                   {"sent", number(ms(it.sent))},
                   {"due", number(ms(it.due))},
                   {"lost", truth(it.lost)},
                   {"kind", quoted(kind)},
                   {"chunk", std::to_string(says.chunk)},
                   {"slot", std::to_string(says.slot)},
                   {"version", std::to_string(says.version)},
                   {"value", std::to_string(says.value)}});
  };
  return object(
      {{"now", number(ms(now_))},
       {"next", next() ? number(*next()) : "null"},
       {"complete", truth(complete())},
       {"exact", list(chunks, [](std::size_t chunk) { return std::to_string(exact(chunk)); })},
       {"ranks", list(ranks, rank)},
       {"slots", list(slots, [&](std::size_t slot) { return list(2, [&](std::size_t v) { return version(slot, v); }); })},
       {"packets", list(packets_.size(), packet)},
       {"log", list(log_.size(), [&](std::size_t line) { return quoted(log_[line]); })}});
}

}  // namespace netsum::playground
