// SwitchML's Algorithm 3 as published, and with a comparison of chunks on top, for the search to find wrong and for
// apps/playground to show. Values only: the paper's look-ahead has no part in what is wrong with it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/job.h"
#include "wire/epochs.h"

namespace netsum::model {

template <bool chunk_check>
class Published : public OneSwitch {
 public:
  struct Version {
    std::pair<std::uint64_t, std::uint32_t> identity{0, 0};  // operation + 1, chunk
    std::array<bool, 8> seen{};
    std::uint32_t count = 0;
    std::vector<std::uint32_t> sums;
  };

  explicit Published(const Setup& setup) : workers_(setup.workers), versions_(std::size_t{setup.slots} * 2) {}

  void on_packet(const RxView& packet, const Endpoint&, Time, Sink& sink) {
    wire::switchml::Common common;
    wire::switchml::ChunkPacket chunk;
    if (wire::switchml::parse_common(packet.bytes, common) != wire::ParseError::none) return;
    if (common.type != wire::switchml::Type::contribution ||
        wire::switchml::parse_chunk(packet.bytes, common, chunk) != wire::ParseError::none)
      return;
    const wire::switchml::ChunkHeader& header = chunk.header;
    Version& version = versions_[std::size_t{header.slot} * 2 + header.version];
    Version& other = versions_[std::size_t{header.slot} * 2 + 1 - header.version];
    const std::pair identity(header.operation + 1, header.chunk);
    if (chunk_check && version.identity.first != 0 && version.identity != identity &&
        (identity < version.identity || version.count != 0)) {
      return;
    }
    if (!version.seen[common.sender]) {  // l. 5
      version.identity = identity;
      version.seen[common.sender] = true;                                                // l. 6
      other.seen[common.sender] = false;                                                 // l. 7
      version.count = (version.count + 1) % workers_;                                    // l. 8
      if (version.count == 1 || workers_ == 1) version.sums.assign(header.elements, 0);  // l. 9-10
      version.sums.resize(header.elements);
      for (std::size_t i = 0; i < header.elements; ++i)
        version.sums[i] += load_le<std::uint32_t>(chunk.payload.data() + 4 * i);  // l. 12
      if (version.count != 0) return;
      for (std::uint32_t rank = 0; rank < workers_; ++rank) send(rank, header, version, sink);  // l. 13-15
    } else if (version.count == 0) {
      send(common.sender, header, version, sink);  // l. 19-21
    }
  }

  void check() const {}
  [[nodiscard]] const Version& version(std::size_t slot, std::size_t number) const { return versions_[slot * 2 + number]; }

  void append_state(std::vector<std::byte>& out) const {
    for (const Version& version : versions_) {
      append_bytes(out, version.identity.first, version.identity.second, version.count, version.seen);
      for (const std::uint32_t sum : version.sums) append_bytes(out, sum);
    }
  }

 private:
  void send(std::uint32_t rank, const wire::switchml::ChunkHeader& header, const Version& version, Sink& sink) const {
    wire::switchml::ChunkHeader result = header;
    result.elements = static_cast<std::uint16_t>(version.sums.size());
    const std::span<std::byte> packet = sink.datagram(host(rank), wire::switchml::chunk_packet_bytes(result));
    wire::switchml::write_chunk_header(
        packet, {wire::switchml::Type::result, 0, job_epoch, wire::fold_epochs(rank_epochs(workers_))}, result);
    for (std::size_t i = 0; i < version.sums.size(); ++i)
      store_le(packet.data() + wire::switchml::chunk_header_bytes + 4 * i, version.sums[i]);
    wire::switchml::seal(packet);
  }

  std::uint32_t workers_;
  std::vector<Version> versions_;  // [slot * 2 + version]
};

}  // namespace netsum::model
