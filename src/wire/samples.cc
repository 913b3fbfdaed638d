#include "wire/samples.h"

#include <array>
#include <span>

#include "wire/atp.h"
#include "wire/netreduce.h"
#include "wire/ring_agreement.h"
#include "wire/switchml.h"
#include "wire/switchml_chip.h"

namespace netsum::wire {
namespace {

using Packets = std::vector<std::byte>;

// A packet of `bytes` zeros at the end of `all`, for a writer.
template <class Write>
void add(Packets& all, std::size_t bytes, const Write& write) {
  const std::size_t begin = all.size();
  all.resize(begin + bytes);
  write(std::span(all).subspan(begin));
}

void add_switchml(Packets& all) {
  using namespace switchml;
  constexpr std::uint64_t epoch = 0x0102030405060708;
  const auto common = [](Type type) {
    return Common{.type = type, .sender = 0x1112, .job_epoch = epoch, .rank_epoch = 0x21222324};
  };
  for (const Type type :
       {Type::contribution, Type::exponent_contribution, Type::result, Type::exponent_result, Type::acknowledgement}) {
    const ChunkHeader header{.operation = 0x3132333435363738,
                             .chunk = 0x41424344,
                             .signature = 0x51525354,
                             .slot = 0x61,
                             .version = 1,
                             .masks = true,
                             .exponents = 3,
                             .elements = 64,
                             .ahead_operation = 7,
                             .ahead_chunk = 0x71727374,
                             .dtype = DType::float16,
                             .op = ReduceOp::max,
                             .acknowledge_only = true,
                             .later = true,
                             .due = true};
    add(all, chunk_header_bytes + padded_exponents(header.exponents), [&](std::span<std::byte> packet) {
      write_chunk_header(packet, common(type), header);
      seal(packet);
    });
  }
  for (const Type type : {Type::empty_contributions, Type::acknowledgements}) {
    Run run;
    run.first.exponents = 1;
    run.members = 0x9105;
    run.versions = 0x8001;
    add(all, run_bytes(run), [&](std::span<std::byte> packet) {
      write_run_header(packet, common(type), run);
      seal(packet);
    });
  }
  SumPart part;
  part.chunk.common = common(Type::sum_part);
  part.chunk.header.dtype = DType::bfloat16;
  part.place = 0x9192;
  part.part = 0x93;
  part.parts = 0x94;
  add(all, sum_part_header_bytes, [&](std::span<std::byte> packet) {
    write_sum_part_header(packet, part);
    seal(packet);
  });
  Ranks missing;
  for (const std::uint32_t rank : {1U, 8U, 70U}) missing.insert(rank);
  for (const Type type : {Type::waiting, Type::missing}) {
    add(all, waiting_bytes(missing), [&](std::span<std::byte> packet) {
      write_waiting(packet, {common(type), 0x3132333435363738, 0x41424344, 0x61, true, missing, 9});
    });
  }
  add(all, mismatch_bytes, [&](std::span<std::byte> packet) {
    write_mismatch(packet, {common(Type::mismatch), 0x3132333435363738, 0x41424344, 0x51525354, 0x55565758, 3, 4});
  });
  add(all, common_bytes, [&](std::span<std::byte> packet) { write_unknown_job(packet, common(Type::contribution)); });
  for (const Type type : {Type::probe, Type::probe_reply}) {
    add(all, probe_reply_bytes, [&](std::span<std::byte> packet) {
      write_probe(packet, {common(type), 0x41424344, 0x8182838485868788});
    });
  }
}

void add_chip(Packets& all) {
  using namespace chip;
  for (const Type type : {Type::contribution, Type::result}) {
    const Header header{.type = type,
                        .member = 5,
                        .version = 1,
                        .slot = 0x1112,
                        .rank = 0x2122,
                        .job_epoch = 0x0102030405060708,
                        .round = 0x313233,
                        .exponents = {0x41, 0x42},
                        .echoed = {.operation = 0x5152535455565758,
                                   .chunk = 0x61626364,
                                   .signature = 0x71727374,
                                   .ahead_chunk = 0x81828384,
                                   .ahead_operation = 0x91,
                                   .kind = 1}};
    add(all, header_bytes, [&](std::span<std::byte> packet) { write_header(packet, header); });
  }
}

void add_atp(Packets& all) {
  using namespace atp;
  Common common{.type = Type::gradient,
                .resend = true,
                .collision = true,
                .wide = true,
                .floats = true,
                .job_epoch = 0x0102030405060708,
                .sequence = 0x1112131415161718,
                .rank_epoch = 0x21222324,
                .signature = 0x31323334,
                .index = 0x41424344,
                .elements = 0x51,
                .exponent = 0x61};
  Directions broad(1, {33, 2, 256, 0}, {1, 2, 3, 0});
  broad.insert(2, 200);
  for (const Directions& directions : {Directions(2, {1, 2, 3, 4}, {1, 2, 4, 8}), broad}) {
    add(all, header_bytes(directions), [&](std::span<std::byte> packet) {
      write_gradient_header(packet, common, directions);
      seal(packet);
    });
  }
  common.ecn = common.overflow = common.direct = common.average = common.integers = true;
  common.resend = common.collision = common.wide = common.floats = false;
  for (const Type type : {Type::parameter, Type::ask, Type::done}) {
    common.type = type;
    add(all, parameter_header_bytes, [&](std::span<std::byte> packet) {
      write_parameter_header(packet, common, 0x71727374);
      seal(packet);
    });
  }
  Ranks missing;
  for (const std::uint32_t rank : {1U, 8U, 70U}) missing.insert(rank);
  common.type = Type::waiting;
  add(all, waiting_bytes(missing), [&](std::span<std::byte> packet) { write_waiting(packet, {common, missing}); });
  common.type = Type::mismatch;
  add(all, mismatch_bytes, [&](std::span<std::byte> packet) {
    write_mismatch(packet, {common, 0x31323334, 0x35363738, 3, 4});
  });
  add(all, common_bytes, [&](std::span<std::byte> packet) { write_unknown_job(packet, common); });
}

void add_netreduce(Packets& all) {
  using namespace netreduce;
  add(all, netsum_layout.header_bytes, [&](std::span<std::byte> packet) {
    write_header(netsum_layout, packet,
                 {.ring = 0x01020304,
                  .rank = 0x11121314,
                  .message = 0x2122232425262728,
                  .packets = 0x31,
                  .signature = 0x41424344,
                  .dtype = DType::float16,
                  .average = true});
  });
  add(all, seal_bytes, [&](std::span<std::byte> packet) { write_seal(packet, {0x0102030405060708, 2, 3, 4, 5}); });
  std::array<std::byte, RingAgreement::bytes> agreement{};
  write(agreement, {.kind = RingAgreement::Kind::begin,
                    .begun = true,
                    .ring = 1,
                    .digest = 2,
                    .rack = 3,
                    .process = 4,
                    .attempt = 5,
                    .source = {6},
                    .destination = {7},
                    .destination_qp = 8,
                    .first_psn = 9,
                    .life = 10,
                    .incarnation = 11});
  all.insert(all.end(), agreement.begin(), agreement.end());
}

}  // namespace

std::vector<std::byte> samples() {
  Packets all;
  add_switchml(all);
  add_chip(all);
  add_atp(all);
  add_netreduce(all);
  return all;
}

}  // namespace netsum::wire
