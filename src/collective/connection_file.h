// A bump's gradient connections, on disk: what it must still know after a restart.
#pragma once

#include <string>
#include <vector>

#include "protocol/netreduce/connection.h"

namespace netsum::collective {

// One a line: address of the source, of the destination, number of the destination's queue pair. Lines that begin with '#'
// are for readers. No such file: none. Throws Error: bad_argument, if it is something else.
[[nodiscard]] std::vector<netreduce::Connection> read_connections(const std::string& path);

// Replaces the file as a whole, and returns once it is on the disk. Throws std::runtime_error.
void write_connections(const std::string& path, const std::vector<netreduce::Connection>& connections);

}  // namespace netsum::collective
