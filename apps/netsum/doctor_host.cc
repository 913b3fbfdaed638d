// What the kernel of this host says.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>

#include "doctor.h"
#include "runtime/cpus.h"
#include "session/words.h"
#include "transport/addresses/addresses.h"
#include "transport/datagram/udp.h"
#include "transport/system/numa.h"
#include "transport/system/socket.h"

namespace netsum::app {
namespace {

using Level = Finding::Level;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  const std::string line = first_line(path);
  if (line.empty() || line.find_first_not_of("0123456789") != std::string::npos || line.size() > 18) return std::nullopt;
  return std::stoull(line);
}

// The word in brackets: "always [madvise] never".
std::string chosen(const std::string& path) {
  const std::string line = first_line(path);
  const std::size_t first = line.find('['), last = line.find(']');
  return first == std::string::npos || last == std::string::npos ? "" : line.substr(first + 1, last - first - 1);
}

// ---- interfaces

struct Link {
  std::string name;
  std::uint32_t mtu = 0;
  bool loopback = false, multicast = false;
};

std::optional<std::uint32_t> offload(int socket, const std::string& name, std::uint32_t command) {
  ethtool_value value{command, 0};
  ifreq request{};
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  request.ifr_data = reinterpret_cast<char*>(&value);
  if (::ioctl(socket, SIOCETHTOOL, &request) != 0) return std::nullopt;
  return value.data;
}

std::map<std::string, Link> links(int socket, const std::optional<Endpoint>& local) {
  std::map<std::string, Link> found;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, &::freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    const bool has_address =
        each->ifa_addr != nullptr && (each->ifa_addr->sa_family == AF_INET || each->ifa_addr->sa_family == AF_INET6);
    if (!has_address || (each->ifa_flags & IFF_UP) == 0) continue;
    const bool loopback = (each->ifa_flags & IFF_LOOPBACK) != 0;
    if (local) {
      sockaddr_storage storage{};
      std::memcpy(&storage, each->ifa_addr,
                  each->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      if (transport::endpoint_of(storage).address != local->address) continue;
    } else if (loopback) {
      continue;
    }
    ifreq request{};
    std::string(each->ifa_name).copy(request.ifr_name, sizeof request.ifr_name - 1);
    if (::ioctl(socket, SIOCGIFMTU, &request) != 0) continue;
    found[each->ifa_name] = {each->ifa_name, static_cast<std::uint32_t>(request.ifr_mtu), loopback,
                             (each->ifa_flags & IFF_MULTICAST) != 0};
  }
  return found;
}

void check_mtu(const Link& link, Findings& findings) {
  const std::string mtu = std::to_string(link.mtu);
  if (link.mtu < 1500) {
    findings.push_back({"mtu", Level::wrong,
                        link.name + " has an MTU of " + mtu + ": packets are short, and cost more than they carry",
                        "ip link set dev " + link.name + " mtu 9000      (1500 where the network takes no more)"});
  } else if (link.mtu < 9000 && !link.loopback) {
    findings.push_back({"mtu", Level::advice,
                        link.name + " has an MTU of " + mtu + ": at 9000 a packet has 2048 elements in place of about 320",
                        "ip link set dev " + link.name + " mtu 9000      (on every host and switch of the network)"});
  } else {
    findings.push_back({"mtu", Level::good, link.name + " has an MTU of " + mtu});
  }
}

void check_offloads(int socket, const Link& link, Findings& findings) {
  if (link.loopback) return;
  const auto receive = offload(socket, link.name, ETHTOOL_GGRO), send = offload(socket, link.name, ETHTOOL_GGSO);
  if (receive == 0U || send == 0U) {
    const std::string off = receive == 0U && send == 0U ? "receive and send offload (gro, gso) are"
                            : receive == 0U             ? "receive offload (gro) is"
                                                        : "send offload (gso) is";
    findings.push_back({"offloads", Level::advice,
                        link.name + ": generic " + off + " off: the kernel handles each packet by itself",
                        "ethtool -K " + link.name + " gro on gso on"});
  } else if (receive && send) {
    findings.push_back({"offloads", Level::good, link.name + ": generic receive and send offload are on"});
  }
  const auto flags = offload(socket, link.name, ETHTOOL_GFLAGS);
  if (flags && (*flags & ETH_FLAG_LRO) != 0) {
    findings.push_back({"offloads", Level::advice,
                        link.name + ": large receive offload is on: a bump in the wire cannot use this interface",
                        "ethtool -K " + link.name + " lro off"});
  }
}

// Of hosts with several NUMA nodes.
void check_node(const Link& link, Findings& findings) {
  const auto node = transport::node_of(link.name);
  const std::string list = node ? transport::cpu_list_of(*node) : "";
  const transport::Ranges near = transport::parse_ranges(list);
  if (near.empty()) return;
  const std::vector<std::uint32_t> allowed = runtime::allowed_cpus();
  const bool good = std::any_of(allowed.begin(), allowed.end(), [&](auto cpu) { return transport::contains(near, cpu); });
  const std::string where = link.name + " is on NUMA node " + std::to_string(*node);
  findings.push_back({"numa", good ? Level::good : Level::advice,
                      good ? where + ", with the CPUs " + list
                           : where + ", and this process may use none of its CPUs: packets pass between nodes",
                      good ? "" : "taskset -c " + list + " netsum ...      (CPUAffinity=" + list + " in its unit)"});
}

// ---- settings

void check_buffer(const char* name, const char* setting, Findings& findings) {
  const std::string path = "/proc/sys/net/core/" + std::string(setting);
  const auto most = number_in(path);
  if (!most) return;
  const std::string wanted = std::to_string(transport::socket_buffer_bytes);
  if (*most >= transport::socket_buffer_bytes) {
    findings.push_back({name, Level::good, "net.core." + std::string(setting) + " is " + session::in_bytes(*most)});
    return;
  }
  const std::string line = "net.core." + std::string(setting) + "=" + wanted;
  findings.push_back({name, *most < (1 << 20) ? Level::wrong : Level::advice,
                      "net.core." + std::string(setting) + " is " + std::to_string(*most) + " (" + session::in_bytes(*most) +
                          "): sockets need " + session::in_bytes(transport::socket_buffer_bytes) +
                          ", and without CAP_NET_ADMIN they get no more than this limit: bursts are lost",
                      "sysctl -w " + line + " && echo '" + line + "' >>/etc/sysctl.d/60-netsum.conf"});
}

void check_huge_pages(Findings& findings) {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  const std::string all = chosen(folder + "enabled"), shared = chosen(folder + "shmem_enabled");
  if (all == "never") {
    findings.push_back({"hugepages", Level::wrong,
                        "transparent huge pages are off: large tensors and slots cost more than they need to",
                        "echo madvise >" + folder + "enabled"});
  } else if (!all.empty()) {
    findings.push_back({"hugepages", Level::good, "transparent huge pages: " + all});
  }
  if (shared == "never" || shared == "deny") {
    findings.push_back({"hugepages", Level::advice,
                        "huge pages of shared memory are off (" + shared + "): ranks of one host exchange in small pages",
                        "echo advise >" + folder + "shmem_enabled"});
  }
}

void check_processors(Findings& findings) {
  const std::string governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (governor == "powersave") {
    findings.push_back({"processors", Level::advice,
                        "the processors' governor is powersave: threads that wake up for packets start slowly",
                        "cpupower frequency-set -g performance"});
  }
  findings.push_back({"processors", Level::good,
                      std::to_string(std::thread::hardware_concurrency()) + " processors: use at most as many --threads"});
}

void check_files(Findings& findings) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max >= 4096) return;
  findings.push_back(
      {"files", Level::advice,
       "a process may have " + std::to_string(limit.rlim_max) + " open files: a daemon of many ranks needs more",
       "ulimit -Hn 65536, or LimitNOFILE=65536 in its unit"});
}

// ---- data paths

void check_xdp(Findings& findings) {
  const int socket = ::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
  const int error = errno;
  if (socket >= 0) {
    ::close(socket);
    const bool mounted = std::filesystem::exists("/sys/fs/bpf");
    findings.push_back({"xdp", mounted ? Level::good : Level::advice,
                        mounted ? "--data-plane xdp would work: this user may use XDP"
                                : "--data-plane xdp would not work: there is no BPF file system",
                        mounted ? "" : "mount -t bpf bpf /sys/fs/bpf"});
    return;
  }
  const bool unknown = error == EAFNOSUPPORT;
  findings.push_back({"xdp", Level::good,
                      unknown ? "--data-plane xdp would not work: the kernel has no XDP sockets"
                              : "--data-plane xdp would not work for this user (" + std::generic_category().message(error) +
                                    "): it needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW"});
}

void check_verbs(Findings& findings) {
  std::string devices;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", error)) {
    devices += (devices.empty() ? "" : ", ") + entry.path().filename().string();
  }
  if (devices.empty()) {
    findings.push_back({"verbs", Level::good, "no RDMA device: NetReduce uses UDP here"});
    return;
  }
  rlimit limit{};
  const bool short_memory = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < (std::uint64_t{64} << 20);
  findings.push_back(
      {"verbs", short_memory ? Level::advice : Level::good,
       "RDMA devices: " + devices +
           (short_memory ? ", but a process may lock only " + session::in_bytes(limit.rlim_cur) + " of memory" : ""),
       short_memory ? "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit" : ""});
}

}  // namespace

std::string interface_with(const Endpoint& local) {
  const transport::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto found = links(socket.number(), local);
  return found.empty() ? "INTERFACE" : found.begin()->first;
}

void check_interfaces(const std::optional<Endpoint>& local, Findings& findings) {
  const transport::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto found = links(socket.number(), local);
  bool multicast = false;
  for (const auto& [name, link] : found) {
    check_mtu(link, findings);
    check_offloads(socket.number(), link, findings);
    check_node(link, findings);
    multicast = multicast || link.multicast;
  }
  if (found.empty()) {
    findings.push_back({"interfaces", Level::advice, "no interface but loopback is up: only ranks of this host can join",
                        "ip -br address"});
  } else {
    findings.push_back({"multicast", Level::good,
                        multicast
                            ? "--multicast may work: an interface takes multicast (the network's switches need a querier)"
                            : "no interface takes multicast: results go to each rank by itself, without --multicast"});
  }
}

void check_settings(Findings& findings) {
  check_buffer("rmem", "rmem_max", findings);
  check_buffer("wmem", "wmem_max", findings);
  check_huge_pages(findings);
  check_processors(findings);
  check_files(findings);
}

void check_data_paths(Findings& findings) {
  check_xdp(findings);
  check_verbs(findings);
}

}  // namespace netsum::app
