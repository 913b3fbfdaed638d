// Another plugin's network in place of this library's sockets: NETSUM_NCCL_NET. NCCL takes CollNet and the network from one
// library, so this one loads the other, and hands on what it has.
#pragma once

#include <string>
#include <vector>

#include "bindings/nccl/abi.h"

namespace netsum::nccl {

// A network plugin that was loaded.
class ExternalNet {
 public:
  // Once for the process. `name`: a path, a library's name, or the NAME of libnccl-net-NAME.so. Throws Error: bad_argument.
  [[nodiscard]] static const ExternalNet& load(const std::string& name);

  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const void* table(int version) const;  // ncclNetPlugin_vN; null: the library has none
  [[nodiscard]] std::string versions() const;          // "8, 10"

 private:
  explicit ExternalNet(const std::string& name);

  struct Table {
    int version;
    const void* address;
  };

  std::string file_;
  std::vector<Table> tables_;
};

// Its devices, which CollNet's have to be too.
struct ExternalDevices {
  Result (*devices)(int* ndev) = nullptr;
  Result (*getProperties)(int dev, NetPropertiesV12* props) = nullptr;
};
void set_external_devices(const ExternalDevices& devices);
[[nodiscard]] ExternalDevices external_devices();  // throws Error: bad_argument, no other plugin's init() has succeeded

}  // namespace netsum::nccl
