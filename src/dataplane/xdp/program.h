// The program in the kernel (chip.bpf.c), its maps, and the interfaces that it is on. All of it ends with this object, or
// with the process.
#pragma once

#include <bpf/libbpf.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dataplane/xdp/embedded.h"
#include "dataplane/xdp/maps.h"
#include "dataplane/xdp/xdp.h"
#include "netsum/error.h"
#include "transport/addresses/attachments.h"
#include "transport/addresses/interfaces.h"

namespace netsum::dataplane::xdp {

// `what` failed with that errno.
[[nodiscard]] Error refused(const std::string& what, int error);

// Holds what routes and neighbours said once.
class Follower {
 public:
  virtual ~Follower() = default;
  // Asks again. On any thread.
  virtual void follow() = 0;
};

// Any thread.
class Followers {
 public:
  void add(Follower& follower);
  void remove(Follower& follower);  // it does not follow afterwards
  void follow_all();

 private:
  std::mutex mutex_;
  std::set<Follower*> all_;
};

class Program {
 public:
  // Loads it, or another ELF file with its functions and maps (bench/xdp). Throws Error: refused.
  explicit Program(const std::vector<Lane>& lanes, std::span<const std::byte> object = embedded_program());
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Puts it on an interface, and again on one that is made again, until this ends. Throws Error: bad_argument, refused.
  void attach(const std::string& interface);
  // Any thread.
  [[nodiscard]] bool is_on(std::uint32_t interface) const;
  // Whether results can leave there: another driver's program sends them. Any thread.
  [[nodiscard]] bool reaches(std::uint32_t interface) const;

  // How the interfaces and addresses of this host are now: puts it where it was, learns whose packets are this host's.
  // Throws Error: internal, refused.
  void follow(transport::Attachments& attachments);
  void learn_stations();

  [[nodiscard]] Followers& followers() const { return followers_; }

  [[nodiscard]] const std::vector<Lane>& lanes() const { return lanes_; }
  // Descriptors, which stay this object's.
  [[nodiscard]] int map(const char* name) const;
  [[nodiscard]] int function(const char* name) const;
  // In the job's value, if it is in its map.
  void set_way(const XdpNewWay& change) const;

 private:
  struct Close {
    void operator()(bpf_object* object) const { bpf_object__close(object); }
    void operator()(bpf_link* link) const { bpf_link__destroy(link); }
  };

  struct Place {
    std::string name;
    std::uint32_t index = 0;  // 0: the interface was removed
    bool in_driver = false;
    std::vector<std::string> vlans{};  // above it, when it was attached
    std::unique_ptr<bpf_link, Close> link;
  };

  void fill_lanes();
  void attach(Place& place) const;
  [[nodiscard]] std::string state_of(const Place& place) const;
  [[nodiscard]] std::vector<std::uint32_t> places() const;

  const std::vector<Lane> lanes_;
  std::unique_ptr<bpf_object, Close> object_;
  mutable std::mutex mutex_;  // of where it is
  std::vector<Place> places_;
  transport::OwnStations stations_;  // that it knows
  mutable Followers followers_;
};

}  // namespace netsum::dataplane::xdp
