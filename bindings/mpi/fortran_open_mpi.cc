// Open MPI's Fortran bindings call PMPI_, past the C entry points. These stand in front of them: of mpif.h and `use mpi`
// (mpi_*_), and of what `use mpi_f08` calls (ompi_*_f).
#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <array>

namespace {

// Fortran's MPI_IN_PLACE and MPI_BOTTOM are variables; C knows them by their addresses. Compilers spell their names
// differently.
class Variable {
 public:
  explicit Variable(const std::array<const char*, 4>& names) {
    std::transform(names.begin(), names.end(), addresses_.begin(),
                   [](const char* name) { return dlsym(RTLD_DEFAULT, name); });
  }
  [[nodiscard]] bool is(const void* address) const {
    return address != nullptr && std::find(addresses_.begin(), addresses_.end(), address) != addresses_.end();
  }

 private:
  std::array<const void*, 4> addresses_{};
};

void* buffer_of(void* address) {
  static const Variable in_place(
      {"mpi_fortran_in_place_", "mpi_fortran_in_place", "mpi_fortran_in_place__", "MPI_FORTRAN_IN_PLACE"});
  static const Variable bottom({"mpi_fortran_bottom_", "mpi_fortran_bottom", "mpi_fortran_bottom__", "MPI_FORTRAN_BOTTOM"});
  if (in_place.is(address)) return MPI_IN_PLACE;
  return bottom.is(address) ? MPI_BOTTOM : address;
}

MPI_Datatype type(const MPI_Fint* handle) {
  return PMPI_Type_f2c(*handle);
}
MPI_Op operation(const MPI_Fint* handle) {
  return PMPI_Op_f2c(*handle);
}
MPI_Comm communicator(const MPI_Fint* handle) {
  return PMPI_Comm_f2c(*handle);
}
void set(MPI_Fint* into, int code) {
  if (into != nullptr) *into = code;  // mpi_f08's is optional
}
// `call` is one that does not block, without its request.
template <class Call>
void begin(const Call& call, MPI_Fint* request, MPI_Fint* code) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int result = call(&started);
  if (result == MPI_SUCCESS) *request = PMPI_Request_c2f(started);
  set(code, result);
}

}  // namespace

extern "C" {

void ompi_init_f(MPI_Fint* code) {
  set(code, MPI_Init(nullptr, nullptr));
}
void ompi_init_thread_f(const MPI_Fint* required, MPI_Fint* provided, MPI_Fint* code) {
  set(code, MPI_Init_thread(nullptr, nullptr, *required, provided));
}
void ompi_finalize_f(MPI_Fint* code) {
  set(code, MPI_Finalize());
}
void ompi_barrier_f(const MPI_Fint* comm, MPI_Fint* code) {
  set(code, MPI_Barrier(communicator(comm)));
}
void ompi_bcast_f(char* buffer, const MPI_Fint* count, const MPI_Fint* datatype, const MPI_Fint* root, const MPI_Fint* comm,
                  MPI_Fint* code) {
  set(code, MPI_Bcast(buffer_of(buffer), *count, type(datatype), *root, communicator(comm)));
}
void ompi_allreduce_f(char* send, char* receive, const MPI_Fint* count, const MPI_Fint* datatype, const MPI_Fint* op,
                      const MPI_Fint* comm, MPI_Fint* code) {
  set(code, MPI_Allreduce(buffer_of(send), buffer_of(receive), *count, type(datatype), operation(op), communicator(comm)));
}
void ompi_reduce_f(char* send, char* receive, const MPI_Fint* count, const MPI_Fint* datatype, const MPI_Fint* op,
                   const MPI_Fint* root, const MPI_Fint* comm, MPI_Fint* code) {
  set(code,
      MPI_Reduce(buffer_of(send), buffer_of(receive), *count, type(datatype), operation(op), *root, communicator(comm)));
}
void ompi_reduce_scatter_f(char* send, char* receive, const MPI_Fint* counts, const MPI_Fint* datatype, const MPI_Fint* op,
                           const MPI_Fint* comm, MPI_Fint* code) {
  set(code,
      MPI_Reduce_scatter(buffer_of(send), buffer_of(receive), counts, type(datatype), operation(op), communicator(comm)));
}
void ompi_reduce_scatter_block_f(char* send, char* receive, const MPI_Fint* count, const MPI_Fint* datatype,
                                 const MPI_Fint* op, const MPI_Fint* comm, MPI_Fint* code) {
  set(code, MPI_Reduce_scatter_block(buffer_of(send), buffer_of(receive), *count, type(datatype), operation(op),
                                     communicator(comm)));
}
void ompi_allgather_f(char* send, const MPI_Fint* send_count, const MPI_Fint* send_type, char* receive,
                      const MPI_Fint* count, const MPI_Fint* datatype, const MPI_Fint* comm, MPI_Fint* code) {
  set(code, MPI_Allgather(buffer_of(send), *send_count, type(send_type), buffer_of(receive), *count, type(datatype),
                          communicator(comm)));
}
void ompi_ibarrier_f(const MPI_Fint* comm, MPI_Fint* request, MPI_Fint* code) {
  begin([&](MPI_Request* started) { return MPI_Ibarrier(communicator(comm), started); }, request, code);
}
void ompi_ibcast_f(char* buffer, const MPI_Fint* count, const MPI_Fint* datatype, const MPI_Fint* root, const MPI_Fint* comm,
                   MPI_Fint* request, MPI_Fint* code) {
  const auto call = [&](MPI_Request* started) {
    return MPI_Ibcast(buffer_of(buffer), *count, type(datatype), *root, communicator(comm), started);
  };
  begin(call, request, code);
}
void ompi_iallreduce_f(char* send, char* receive, const MPI_Fint* count, const MPI_Fint* datatype, const MPI_Fint* op,
                       const MPI_Fint* comm, MPI_Fint* request, MPI_Fint* code) {
  const auto call = [&](MPI_Request* started) {
    return MPI_Iallreduce(buffer_of(send), buffer_of(receive), *count, type(datatype), operation(op), communicator(comm),
                          started);
  };
  begin(call, request, code);
}
void ompi_ireduce_f(char* send, char* receive, const MPI_Fint* count, const MPI_Fint* datatype, const MPI_Fint* op,
                    const MPI_Fint* root, const MPI_Fint* comm, MPI_Fint* request, MPI_Fint* code) {
  const auto call = [&](MPI_Request* started) {
    return MPI_Ireduce(buffer_of(send), buffer_of(receive), *count, type(datatype), operation(op), *root, communicator(comm),
                       started);
  };
  begin(call, request, code);
}
void ompi_ireduce_scatter_f(char* send, char* receive, const MPI_Fint* counts, const MPI_Fint* datatype, const MPI_Fint* op,
                            const MPI_Fint* comm, MPI_Fint* request, MPI_Fint* code) {
  const auto call = [&](MPI_Request* started) {
    return MPI_Ireduce_scatter(buffer_of(send), buffer_of(receive), counts, type(datatype), operation(op),
                               communicator(comm), started);
  };
  begin(call, request, code);
}
void ompi_ireduce_scatter_block_f(char* send, char* receive, const MPI_Fint* count, const MPI_Fint* datatype,
                                  const MPI_Fint* op, const MPI_Fint* comm, MPI_Fint* request, MPI_Fint* code) {
  const auto call = [&](MPI_Request* started) {
    return MPI_Ireduce_scatter_block(buffer_of(send), buffer_of(receive), *count, type(datatype), operation(op),
                                     communicator(comm), started);
  };
  begin(call, request, code);
}
void ompi_iallgather_f(char* send, const MPI_Fint* send_count, const MPI_Fint* send_type, char* receive,
                       const MPI_Fint* count, const MPI_Fint* datatype, const MPI_Fint* comm, MPI_Fint* request,
                       MPI_Fint* code) {
  const auto call = [&](MPI_Request* started) {
    return MPI_Iallgather(buffer_of(send), *send_count, type(send_type), buffer_of(receive), *count, type(datatype),
                          communicator(comm), started);
  };
  begin(call, request, code);
}

// A compiler's spellings of the same procedures.
#define NETSUM_SPELLINGS(name)                                                         \
  decltype(ompi_##name##_f) mpi_##name##_ __attribute__((alias("ompi_" #name "_f")));  \
  decltype(ompi_##name##_f) mpi_##name##__ __attribute__((alias("ompi_" #name "_f"))); \
  decltype(ompi_##name##_f) mpi_##name __attribute__((alias("ompi_" #name "_f")))
NETSUM_SPELLINGS(init);
NETSUM_SPELLINGS(init_thread);
NETSUM_SPELLINGS(finalize);
NETSUM_SPELLINGS(barrier);
NETSUM_SPELLINGS(bcast);
NETSUM_SPELLINGS(allreduce);
NETSUM_SPELLINGS(reduce);
NETSUM_SPELLINGS(reduce_scatter);
NETSUM_SPELLINGS(reduce_scatter_block);
NETSUM_SPELLINGS(allgather);
NETSUM_SPELLINGS(ibarrier);
NETSUM_SPELLINGS(ibcast);
NETSUM_SPELLINGS(iallreduce);
NETSUM_SPELLINGS(ireduce);
NETSUM_SPELLINGS(ireduce_scatter);
NETSUM_SPELLINGS(ireduce_scatter_block);
NETSUM_SPELLINGS(iallgather);
#undef NETSUM_SPELLINGS
}
