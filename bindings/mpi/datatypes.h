// MPI's datatypes and operations as netsum's.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include "netsum/types.h"
#include "path.h"

namespace netsum::mpi {

enum class Kind : std::uint8_t { signed_integer, unsigned_integer, floating, complex, logical, bytes, text };

// A named datatype whose elements are numbers side by side.
struct Numbers {
  Kind kind = Kind::bytes;  // text: moved, never reduced
  std::uint32_t width = 1;  // bytes of a number; an element of a complex type has two
  [[nodiscard]] std::uint32_t of_element() const { return kind == Kind::complex ? 2 : 1; }
  [[nodiscard]] std::size_t element_bytes() const { return std::size_t{width} * of_element(); }
};

// Duplicates (MPI_Type_dup) are as good as what they duplicate. None: any other datatype.
[[nodiscard]] std::optional<Numbers> numbers_of(MPI_Datatype datatype);

// What is done to each number before the reduction, and undone after it.
enum class Preparation : std::uint8_t {
  none,
  truth,     // any value that is not 0 becomes 1 (logical operations)
  flip_top,  // the top bit: signed integers are then ordered as unsigned ones are
};

struct Reduction {
  DType dtype = DType::int32;
  ReduceOp op = ReduceOp::sum;
  Preparation preparation = Preparation::none;
};

// Path: why not.
[[nodiscard]] std::variant<Reduction, Path> reduction_of(Numbers numbers, MPI_Op op);

void prepare(Preparation preparation, std::uint32_t width, std::byte* data, std::size_t numbers);
void restore(Preparation preparation, std::uint32_t width, std::byte* data, std::size_t numbers);

}  // namespace netsum::mpi
