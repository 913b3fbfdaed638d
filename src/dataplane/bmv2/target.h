// What the control plane needs of a P4 switch: entries of tables, registers, counters and groups, by the program's names.
//
// Any thread. All functions throw Error: unreachable (it does not answer within two seconds, or ten if
// it is reset), refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace netsum::dataplane::bmv2 {

class Target {
 public:
  using Bytes = std::string;  // of one field, in network order
  struct Count {
    std::uint64_t packets = 0, bytes = 0;
  };
  // A copy of a packet of a group.
  struct Replica {
    std::uint16_t number = 0;
    std::vector<std::uint32_t> ports;
  };
  struct Group {
    std::int32_t handle = -1;
    std::vector<std::int32_t> nodes;
  };

  virtual ~Target() = default;

  // All tables, groups, registers and counters are as the program begins.
  virtual void reset() = 0;
  virtual std::int32_t add_entry(const std::string& table, const std::vector<Bytes>& key, const std::string& action,
                                 const std::vector<Bytes>& data) = 0;
  virtual void delete_entry(const std::string& table, std::int32_t entry) = 0;
  [[nodiscard]] virtual std::uint64_t entries_of(const std::string& table) = 0;
  [[nodiscard]] virtual Count count(const std::string& counter, std::uint32_t index) = 0;
  virtual void clear_count(const std::string& counter, std::uint32_t index) = 0;
  // At most 2^63 - 1 each: the runtime interface of bmv2 has no larger ones.
  [[nodiscard]] virtual std::vector<std::uint64_t> read_registers(const std::string& name) = 0;
  virtual void fill_registers(const std::string& name, std::uint32_t begin, std::uint32_t end, std::uint64_t value) = 0;
  virtual void limit_meter(const std::string& name, double packets_per_second, std::uint32_t burst) = 0;
  [[nodiscard]] virtual Group make_group(std::uint16_t number, const std::vector<Replica>& replicas) = 0;
  virtual void destroy_group(const Group& group) = 0;
  [[nodiscard]] virtual std::vector<std::uint32_t> ports() = 0;
  virtual void deepen_queues(std::uint32_t packets) = 0;
};

// simple_switch's runtime interface. Throws Error: bad_argument (no address), unreachable.
[[nodiscard]] std::unique_ptr<Target> connect(const std::string& address);

}  // namespace netsum::dataplane::bmv2
