#include "seal/hops.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace netsum::seal {

void Hops::set(std::uint64_t number, PacketSecurity security, std::span<const Neighbour> neighbours,
               std::span<const std::uint64_t> marks) {
  Job& job = jobs_[number];
  job.security = security;
  forget_marks(job);
  job.marks.assign(marks.begin(), marks.end());
  for (const std::uint64_t mark : marks) by_mark_.emplace(mark, &job);
  count_issued(job);
  std::vector<std::unique_ptr<Link>> links;
  for (const Neighbour& neighbour : neighbours) {
    const auto former = std::find_if(job.links.begin(), job.links.end(), [&](const auto& link) {
      return link && link->neighbour.send == neighbour.send && link->neighbour.receive == neighbour.receive &&
             neighbour.send;
    });
    std::unique_ptr<Link>& link = links.emplace_back();
    if (former != job.links.end()) {
      link = std::move(*former);
    } else {
      link = std::make_unique<Link>();
      if (neighbour.send) link->sealer.emplace(security, neighbour.send, std::uint16_t{0}, issued_);
      if (neighbour.receive) link->opener.emplace(security, neighbour.receive, std::uint16_t{0});
    }
    link->neighbour = neighbour;
  }
  job.links = std::move(links);
  job.at.clear();
  for (const auto& link : job.links) {
    if (link->neighbour.endpoint.port != 0) job.at.emplace(link->neighbour.endpoint, link.get());
  }
}

void Hops::remove(std::uint64_t number) {
  const auto job = jobs_.find(number);
  if (job == jobs_.end()) return;
  forget_marks(job->second);
  count_issued(job->second);
  jobs_.erase(job);
}

void Hops::forget_marks(const Job& job) {
  for (const std::uint64_t mark : job.marks) {
    auto [found, end] = by_mark_.equal_range(mark);
    while (found != end) found = found->second == &job ? by_mark_.erase(found) : std::next(found);
  }
}

void Hops::count_issued(const Job& job) {
  for (const auto& link : job.links) {
    if (link->sealer) issued_ = std::max(issued_, link->sealer->issued());
  }
}

Hops::Job* Hops::job_of(std::span<const std::byte> packet, const Endpoint& neighbour) {
  const auto mark = layout_.mark(packet);
  if (!mark) return nullptr;
  const auto [first, end] = by_mark_.equal_range(*mark);
  const auto its = std::find_if(first, end, [&](const auto& entry) { return entry.second->at.contains(neighbour); });
  return its != end ? its->second : first != end ? first->second : nullptr;
}

Hops::Link* Hops::link_of(Job& job, const Endpoint& endpoint) {
  const auto found = job.at.find(endpoint);
  return found == job.at.end() ? nullptr : found->second;
}

std::size_t Hops::clear_of(std::size_t bytes, const Opener& opener) const {
  return std::min(layout_.clear, bytes - std::min(bytes, opener.trailer()));
}

std::span<const RxView> Hops::open(std::span<const RxView> packets) {
  opened_.clear();
  std::size_t rooms = 0;
  for (const RxView& packet : packets) {
    Job* const job = job_of(packet.bytes, packet.source);
    if (job == nullptr) {
      opened_.push_back(packet);
      continue;
    }
    Link* const link = link_of(*job, packet.source);
    if (link != nullptr && !link->opener) {
      opened_.push_back(packet);  // from this host
      continue;
    }
    if (link != nullptr && job->security == PacketSecurity::encrypt) {
      if (rooms == rooms_.size()) rooms_.emplace_back();
      if (rooms_[rooms].size() < packet.bytes.size()) rooms_[rooms].resize(packet.bytes.size());
    }
    const std::span<std::byte> room =
        job->security == PacketSecurity::encrypt && link != nullptr ? std::span(rooms_[rooms]) : std::span<std::byte>();
    const auto opened = link == nullptr
                            ? std::optional<Opener::Opened>()
                            : link->opener->open(packet.bytes, clear_of(packet.bytes.size(), *link->opener), room);
    if (!opened || !link->window.take(opened->counter)) {
      ++unbelieved_;
      continue;
    }
    if (!room.empty()) ++rooms;
    RxView& view = opened_.emplace_back(packet);
    view.bytes = opened->bytes;
  }
  return opened_;
}

std::span<std::byte> SealingSink::datagram(const Endpoint& to, std::size_t bytes) {
  finish();
  to_ = to;
  is_pending_ = true;
  pending_.resize(bytes);
  return pending_;
}

void SealingSink::multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) {
  finish();
  if (to.empty() || hops_.job_of(packet, to.front()) == nullptr) return network_.multicast(packet, to);
  for (const Endpoint& each : to) send(packet, each, hops_.job_of(packet, each));
}

void SealingSink::flush() {
  finish();
  network_.flush();
}

void SealingSink::finish() {
  if (!is_pending_) return;
  is_pending_ = false;
  send(pending_, to_, hops_.job_of(pending_, to_));
}

void SealingSink::send(std::span<const std::byte> packet, const Endpoint& to, Hops::Job* job) {
  Hops::Link* const link = job == nullptr ? nullptr : Hops::link_of(*job, to);
  if (job != nullptr && link == nullptr) return;  // a job's values go to nobody who has no key of it
  const bool sealed = link != nullptr && link->sealer;
  const std::size_t trailer = sealed ? link->sealer->trailer() : 0;
  const std::span<std::byte> out = network_.datagram(to, packet.size() + trailer);
  std::memcpy(out.data(), packet.data(), packet.size());
  if (sealed) link->sealer->seal(out, std::min(hops_.layout_.clear, packet.size()));
}

}  // namespace netsum::seal
