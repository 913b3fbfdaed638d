#include "agreement.h"

namespace netsum::mpi {

std::string broadcast_text(const std::string& text, int root, MPI_Comm comm) {
  std::string all = text;
  int length = static_cast<int>(text.size());
  PMPI_Bcast(&length, 1, MPI_INT, root, comm);
  all.resize(static_cast<std::size_t>(length));
  if (length > 0) PMPI_Bcast(all.data(), length, MPI_CHAR, root, comm);
  return all;
}

std::optional<std::string> first_complaint(const Complaint& own, MPI_Comm comm) {
  int rank = 0, ranks = 0;
  PMPI_Comm_rank(comm, &rank);
  PMPI_Comm_size(comm, &ranks);
  const int none = 2 * ranks;
  const int place = own.text.empty() ? none : own.of_another ? ranks + rank : rank;
  int first = none;
  PMPI_Allreduce(&place, &first, 1, MPI_INT, MPI_MIN, comm);
  if (first == none) return std::nullopt;
  const int complainer = first % ranks;
  char host[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  PMPI_Get_processor_name(host, &length);
  return broadcast_text("rank " + std::to_string(complainer) + " on " + host + ": " + own.text, complainer, comm);
}

}  // namespace netsum::mpi
