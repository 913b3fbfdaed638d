// What the ranks of a job share, and its aggregators do not, so that these add values that they cannot read
// (docs/private-sums.md). Ranks form a ring. Rank r adds the pad of the edge to rank r + 1 to its values and takes off that
// of the edge from rank r - 1, and rank 0 also adds the pad `out`; so all pads but `out` cancel in the sum. Two ranks have
// one edge: each knows the other's values anyway, from the sum.
//
// Each time that a rank joins it draws an X25519 key pair (RFC 7748). All ranks' public keys and the job's secret make the
// keys, so no rank uses a pad twice, whatever an aggregator tells it again; and an edge's key takes the secret of one of its
// two ends as well.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "seal/packet_key.h"
#include "seal/pads.h"

struct evp_pkey_st;  // OpenSSL's

namespace netsum::seal {

inline constexpr std::size_t least_secret_bytes = 16;  // of a job
inline constexpr std::uint32_t most_private_ranks = 1024;

using PublicKey = std::array<std::byte, 32>;

// Of one rank in one life of a job.
struct PadKeys {
  PacketKey out, check;      // check: of the hash that shows that a sum is the ranks' (seal/linear_hash.h)
  PacketKey next, previous;  // of the edges that the rank has
};

class Agreement {
 public:
  // `secret`: of the job, of any length. `drawn`: unpredictable, for one join alone. Throws std::bad_alloc.
  Agreement(std::string_view secret, std::span<const std::byte, 32> drawn);

  [[nodiscard]] const PublicKey& own() const { return own_; }
  // By which ranks that were given different secrets are told so; of the secret, it tells no more than this.
  [[nodiscard]] std::uint32_t fingerprint() const;
  // `all`: public keys, by rank. None: a neighbour's is no public key, or this rank's is not among them.
  [[nodiscard]] std::optional<PadKeys> keys(std::span<const PublicKey> all, std::uint32_t rank) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  // X25519 of this rank's private key; none: `peer` is no key that gives a secret.
  [[nodiscard]] std::optional<PacketKey> shared_with(const PublicKey& peer) const;

  PacketKey secret_;
  std::unique_ptr<evp_pkey_st, Free> pair_;
  PublicKey own_{};
};

// A rank's pads, on packets.
class Pads {
 public:
  Pads(const PadKeys& keys, std::uint32_t rank);

  // Values that all ranks give; `width` of apply_pads().
  void mask_term(std::span<std::byte> values, std::size_t width, PadPlace place) const;
  // Values that this rank alone gives.
  void mask_only(std::span<std::byte> values, std::size_t width, PadPlace place) const;
  // A sum, of either.
  void unmask(std::byte* to, std::span<const std::byte> sum, std::size_t width, PadPlace place) const;

 private:
  PadKey out_;
  std::optional<PadKey> next_, previous_;
  bool gives_out_;
};

}  // namespace netsum::seal
