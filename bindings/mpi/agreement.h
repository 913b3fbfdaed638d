// How all ranks of a communicator decide together, over MPI: what one rank finds, all learn.
#pragma once

#include <mpi.h>

#include <optional>
#include <string>

namespace netsum::mpi {

// `root`'s text, on all ranks.
[[nodiscard]] std::string broadcast_text(const std::string& text, int root, MPI_Comm comm);

struct Complaint {
  std::string text;         // empty: none
  bool of_another = false;  // this rank merely waited for others: their complaints say more
};

// The first rank's complaint, on all ranks, as "rank 3 on host: text"; none if no rank has one.
[[nodiscard]] std::optional<std::string> first_complaint(const Complaint& own, MPI_Comm comm);

}  // namespace netsum::mpi
