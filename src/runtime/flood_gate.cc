#include "runtime/flood_gate.h"

#include <bit>
#include <initializer_list>
#include <limits>

#include "wire/atp.h"
#include "wire/switchml.h"

namespace netsum::runtime {
namespace {

// The kernel runs a UDP socket's filter from the UDP header on.
constexpr std::uint32_t udp_header = 8;
constexpr std::uint32_t at_version = udp_header + wire::switchml::at_version, at_type = udp_header + wire::switchml::at_type,
                        at_epoch = udp_header + wire::switchml::at_job_epoch;
static_assert(wire::switchml::at_version == wire::atp::at_version && wire::switchml::at_job_epoch == wire::atp::at_job_epoch,
              "one list of epochs serves both formats");

constexpr sock_filter statement(std::uint16_t code, std::uint32_t value) {
  return {code, 0, 0, value};
}
constexpr sock_filter jump_if(std::uint32_t equals, std::uint8_t yes, std::uint8_t no) {
  return {BPF_JMP | BPF_JEQ | BPF_K, yes, no, equals};
}
constexpr sock_filter load_byte(std::uint32_t at) {
  return statement(BPF_LD | BPF_B | BPF_ABS, at);
}
constexpr sock_filter load_word(std::uint32_t at) {
  return statement(BPF_LD | BPF_W | BPF_ABS, at);  // in network order; beyond the end: the datagram is dropped
}
constexpr sock_filter pass = statement(BPF_RET | BPF_K, std::numeric_limits<std::uint32_t>::max());
constexpr sock_filter drop = statement(BPF_RET | BPF_K, 0);

// The lower half of an epoch as load_word() sees it. Epochs are random, so half of one tells a few hundred jobs from
// strangers well enough, and the kernel bounds a filter's length (net.core.optmem_max).
constexpr std::uint32_t as_loaded(std::uint64_t epoch) {
  const auto half = static_cast<std::uint32_t>(epoch);
  return std::endian::native == std::endian::little ? __builtin_bswap32(half) : half;
}

}  // namespace

std::vector<sock_filter> filter_of(const Guests& guests, std::uint32_t one_in) {
  std::vector<sock_filter> program;
  const auto add = [&](std::initializer_list<sock_filter> statements) {
    for (const sock_filter& each : statements) program.push_back(each);
  };
  add({load_byte(at_type), statement(BPF_ALU | BPF_AND | BPF_K, wire::switchml::type_bits), statement(BPF_MISC | BPF_TAX, 0),
       load_byte(at_version)});
  // Probes from ranks that are about to join.
  add({jump_if(wire::switchml::version, 0, 3), statement(BPF_MISC | BPF_TXA, 0),
       jump_if(static_cast<std::uint32_t>(wire::switchml::Type::probe), 0, 1), pass});
  if (guests.rings != 0) {  // IP packets of either version
    add({load_byte(at_version), statement(BPF_ALU | BPF_AND | BPF_K, 0xf0), jump_if(0x40, 1, 0), jump_if(0x60, 0, 1), pass});
  }
  add({load_word(at_epoch)});
  for (const std::uint64_t epoch : guests.epochs) add({jump_if(as_loaded(epoch), 0, 1), pass});
  if (one_in != 0) {
    add({load_word(static_cast<std::uint32_t>(SKF_AD_OFF + SKF_AD_RANDOM)), statement(BPF_ALU | BPF_AND | BPF_K, one_in - 1),
         jump_if(0, 0, 1), pass});
  }
  add({drop});
  if (program.size() > BPF_MAXINSNS) program.clear();
  return program;
}

}  // namespace netsum::runtime
