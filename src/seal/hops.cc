#include "seal/hops.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"

namespace netsum::seal {

void Hops::set(std::uint64_t epoch, PacketSecurity security, std::span<const Neighbour> neighbours) {
  Job& job = jobs_[epoch];
  job.security = security;
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
      if (neighbour.send) link->sealer.emplace(security, neighbour.send, std::uint16_t{0});
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

Hops::Job* Hops::job_of(std::span<const std::byte> packet) {
  if (packet.size() < layout_.epoch + sizeof(std::uint64_t)) return nullptr;
  const auto found = jobs_.find(load_le<std::uint64_t>(packet.data() + layout_.epoch));
  return found == jobs_.end() ? nullptr : &found->second;
}

Hops::Link* Hops::link_of(Job& job, const Endpoint& endpoint) {
  const auto found = job.at.find(endpoint);
  return found == job.at.end() ? nullptr : found->second;
}

std::span<const RxView> Hops::open(std::span<const RxView> packets) {
  opened_.clear();
  std::size_t rooms = 0;
  for (const RxView& packet : packets) {
    Job* const job = job_of(packet.bytes);
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
    const auto opened =
        link == nullptr ? std::optional<Opener::Opened>() : link->opener->open(packet.bytes, layout_.clear, room);
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
  Hops::Job* const job = hops_.job_of(packet);
  if (job == nullptr) return network_.multicast(packet, to);
  for (const Endpoint& each : to) send(packet, each, job);
}

void SealingSink::flush() {
  finish();
  network_.flush();
}

void SealingSink::finish() {
  if (!is_pending_) return;
  is_pending_ = false;
  send(pending_, to_, hops_.job_of(pending_));
}

void SealingSink::send(std::span<const std::byte> packet, const Endpoint& to, Hops::Job* job) {
  Hops::Link* const link = job == nullptr ? nullptr : Hops::link_of(*job, to);
  if (job != nullptr && link == nullptr) return;  // a job's values go to nobody who has no key of it
  const bool sealed = link != nullptr && link->sealer;
  const std::size_t trailer = sealed ? link->sealer->trailer() : 0;
  const std::span<std::byte> out = network_.datagram(to, packet.size() + trailer);
  std::memcpy(out.data(), packet.data(), packet.size());
  if (sealed) link->sealer->seal(out, hops_.layout_.clear);
}

}  // namespace netsum::seal
