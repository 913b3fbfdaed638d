// A protocol's own parts of messages (session::OwnPart), as structures: written by its code at one end, and read by that at
// the other. Each has its fields beside it (encoding/codec.h).
#pragma once

#include <string_view>

#include "encoding/codec.h"
#include "jobs/public_keys.h"
#include "netsum/error.h"
#include "session/membership.h"

namespace netsum::jobs {

template <class Archive>
void fields(Archive& a, PrivateAsk& m) {
  a.text(1, "public_key", m.public_key, std::tuple_size_v<seal::PublicKey>);
  a.number(2, "fingerprint", m.fingerprint);
  a.number(3, "fixed_exponent", m.fixed_exponent);
}

template <class Part>
[[nodiscard]] session::OwnPart written(const Part& part) {
  const encoding::Bytes bytes = encoding::encoded(part);
  return {bytes.data(), bytes.size()};
}

// The part of a message that has passed its check. Throws Error: internal.
template <class Part>
[[nodiscard]] Part checked_part(std::string_view own) {
  auto part = encoding::parsed<Part>(own);
  if (!part) throw Error(ErrorCode::internal, "the protocol's part of a checked message cannot be decoded: " + part.why());
  return std::move(*part);
}

}  // namespace netsum::jobs
