// Tensors of any shape and content: lanes share out every element once, and what ranks encode, a switch adds and ranks
// decode is the sum, within the bound of docs/numerics.md, in the same bits on all ranks.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>
#include <string>

#include "fuzz/harness.h"
#include "kernels/kernels.h"
#include "oracle/judge.h"
#include "protocol/switchml/chunk_codec.h"
#include "protocol/switchml/stripes.h"
#include "stream/tensor.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

constexpr std::uint32_t packet_lengths[] = {64, 128, 192, 256, 320, 832, 1024, 15360};

void check_shares(std::uint64_t elements, std::uint64_t operation, std::uint32_t packet_elements, std::uint32_t lanes,
                  std::uint32_t run_chunks) {
  const std::uint64_t total = std::max<std::uint64_t>(1, (elements + packet_elements - 1) / packet_elements);
  std::uint64_t chunks = 0;
  std::vector<bool> seen(total <= 4096 ? total : 0);
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    const switchml::Stripes stripes(elements, operation, packet_elements, {lane, lanes, run_chunks});
    chunks += stripes.chunks();
    if (!seen.empty()) {
      for (std::uint64_t i = 0; i < stripes.chunks(); ++i) {
        const std::uint32_t chunk = stripes.at(i).number;
        fuzz::check(chunk < total && !seen[chunk], "a chunk is of one lane");
        seen[chunk] = true;
      }
    } else if (stripes.chunks() > 0) {
      const std::uint64_t last = stripes.chunks() - 1;
      fuzz::check(stripes.at(last).offset < elements && stripes.at(last).offset + stripes.at(last).elements <= elements,
                  "the last chunk lies inside");
      fuzz::check(stripes.at(last + 1).offset >= elements, "and no other follows");
    }
  }
  fuzz::check(chunks == total, "all lanes' chunks are the tensor's");
}

// One value from the input: any bits, mostly of a size near another's.
std::uint32_t bits_of(FuzzedDataProvider& input) {
  switch (input.ConsumeIntegralInRange<int>(0, 7)) {
    case 0:
      return input.PickValueInArray<std::uint32_t>({0, 0x80000000, 1, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                                    0x7fc00000, 0x00800000, 0x4b000000, 0x7fffffff});
    case 1:
      return input.ConsumeIntegral<std::uint32_t>();
    default:
      return std::bit_cast<std::uint32_t>(static_cast<float>(input.ConsumeIntegral<std::int16_t>()));
  }
}

struct Job {
  std::uint32_t ranks, packet_elements;
  stream::Operation operation;
  std::vector<std::vector<std::byte>> tensors;

  [[nodiscard]] stream::Operation of(std::size_t rank) {
    stream::Operation own = operation;
    own.data = tensors[rank].data();
    return own;
  }
};

// All of a tensor through the codec, as workers and a switch would take it.
void all_reduce(Job& job) {
  const std::uint64_t words = stream::wire_elements(job.operation);
  const auto [travels, op] = stream::on_wire(job.operation);
  const bool in_order = added_in_order(travels), in_blocks = has_blocks(travels);
  const std::size_t packet_bytes = job.packet_elements * 4;
  const auto packet_elements =
      static_cast<std::uint32_t>(in_blocks ? block_values_in(packet_bytes) : packet_bytes / bytes_of(travels));
  const bool scanned = stream::uses_exponents(job.operation);
  const switchml::Stripes stripes(words, 0, packet_elements, {}, scanned);
  std::vector<switchml::ChunkCodec> codecs;
  for (std::uint32_t rank = 0; rank < job.ranks; ++rank) codecs.emplace_back(rank, job.ranks, job.packet_elements);
  // The exponents of all ranks, before results overwrite what they are of.
  std::vector<std::uint8_t> all(scanned ? stripes.blocks() : 0);
  std::vector<bool> nonfinite(stripes.count());
  for (std::uint64_t stripe = 0; scanned && stripe < stripes.count(); ++stripe) {
    const std::size_t first = stripes.first_block_of(stripe), blocks = stripes.first_block_of(stripe + 1) - first;
    for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
      std::vector<std::uint8_t> own(blocks);
      const bool found = codecs[rank].scan(job.of(rank), stripes.stripe_offset(stripe), stripes.stripe_length(stripe), own);
      nonfinite[stripe] = nonfinite[stripe] || found;
      for (std::size_t i = 0; i < blocks; ++i) all[first + i] = std::max(all[first + i], own[i]);
    }
  }
  for (std::uint64_t chunk = 0; chunk < stripes.chunks(); ++chunk) {
    const std::uint64_t offset = stripes.at(chunk).offset;
    const std::uint32_t count = stripes.at(chunk).elements;
    // As long as in a packet: beyond them nothing may be read.
    std::vector<std::uint8_t> exponents;
    if (scanned) {
      const std::uint8_t* const first = all.data() + stripes.at(chunk).first_block;
      exponents.assign(first, first + stripes.at(chunk).blocks);
    }
    const std::size_t mask = nonfinite[stripes.stripe(chunk)] ? 2 * wire::switchml::mask_bytes(count) : 0;
    const std::size_t elements = in_blocks ? block_bytes(travels, count) : count;
    std::vector<std::byte> sum(elements_of_sum(travels, elements) * bytes_of(travels)), masks(mask);
    std::vector<std::vector<std::byte>> gathered;
    bool first = true;
    for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
      if (!stream::contributes(job.operation, static_cast<std::uint32_t>(rank))) continue;
      std::vector<std::byte> payload(elements * bytes_of(travels)), own(mask);
      codecs[rank].encode(job.of(rank), offset, count, exponents.data(), payload.data(), own);
      if (in_order) {
        gathered.push_back(std::move(payload));
        continue;
      }
      first ? sum.swap(payload) : kernels::combine(op, travels, sum.data(), payload.data(), count);
      first = false;
      kernels::or_bytes(masks.data(), own.data(), mask);
    }
    if (in_order) {
      std::vector<const std::byte*> sources;
      for (const auto& payload : gathered) sources.push_back(payload.data());
      kernels::combine_in_order(op, travels, sum.data(), sources, elements, op == ReduceOp::avg ? job.ranks : 1);
    }
    for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
      static_cast<void>(codecs[rank].decode(job.of(rank), offset, count, exponents.data(), sum.data(), masks));
    }
  }
}

// What docs/numerics.md gives for what travels like this.
void check_result(const Job& job, const std::vector<std::vector<std::byte>>& inputs) {
  oracle::Reduction reduction{.op = job.operation.op, .dtype = job.operation.dtype, .ranks = job.ranks};
  const DType travels = stream::wire_dtype(job.operation);
  if (travels == DType::float32) reduction.numbers = oracle::Numbers::in_double;
  if (travels == DType::float16) reduction.numbers = oracle::Numbers::as_float16;
  if (travels == DType::bfloat16) reduction.numbers = oracle::Numbers::as_bfloat16;
  if (travels == block8) reduction.numbers = oracle::Numbers::as_block8;
  if (travels == block4) reduction.numbers = oracle::Numbers::as_block4;
  const std::string complaint = oracle::judge(reduction, inputs, job.tensors[0]);
  if (!complaint.empty()) std::fprintf(stderr, "%s\n", complaint.c_str());
  fuzz::check(complaint.empty(), "the result");
}

void check_job(FuzzedDataProvider& input) {
  Job job;
  job.ranks = input.ConsumeIntegralInRange<std::uint32_t>(1, 3);
  job.packet_elements = input.PickValueInArray(packet_lengths);
  job.operation.dtype =
      input.PickValueInArray({DType::float32, DType::float32, DType::int32, DType::float16, DType::bfloat16});
  const auto how = input.ConsumeIntegralInRange<std::size_t>(0, 13);
  constexpr WireFormat formats[] = {WireFormat::native,   WireFormat::native, WireFormat::float32, WireFormat::float16,
                                    WireFormat::bfloat16, WireFormat::int8,   WireFormat::int4};
  job.operation.op = how % 2 != 0 ? ReduceOp::avg : ReduceOp::sum;
  job.operation.wire = formats[how / 2];
  job.operation.nearest = input.ConsumeBool();
  if (input.ConsumeBool()) {
    job.operation.dtype = input.PickValueInArray(dtypes);
    const ReduceOp op = input.PickValueInArray(reduce_ops);
    if (applies_to(op, job.operation.dtype)) job.operation.op = op;
    if (!applies_to(job.operation.op, job.operation.dtype)) job.operation.op = ReduceOp::sum;
  }
  const bool broadcast = input.ConsumeIntegralInRange<int>(0, 7) == 0;
  job.operation.elements = input.ConsumeIntegralInRange<std::uint64_t>(0, 600);
  job.operation.root = input.ConsumeIntegralInRange<std::uint32_t>(0, job.ranks - 1);
  if (broadcast) job.operation.collective = stream::Collective::broadcast;
  const std::size_t bytes = job.operation.elements * (broadcast ? 1 : bytes_of(job.operation.dtype));
  job.tensors.assign(job.ranks, std::vector<std::byte>(bytes));
  while (input.remaining_bytes() > 0 && bytes > 0) {
    auto& tensor = job.tensors[input.ConsumeIntegralInRange<std::size_t>(0, job.ranks - 1)];
    const std::size_t size = broadcast ? 1 : bytes_of(job.operation.dtype);
    std::uint64_t value = bits_of(input);
    if (size == 8) value = value << 32 | bits_of(input);
    const std::size_t at = input.ConsumeIntegral<std::uint16_t>() % job.operation.elements * size;
    std::memcpy(tensor.data() + at, reinterpret_cast<const std::byte*>(&value) + (size < 4 ? 4 - size : 0), size);
  }
  const auto inputs = job.tensors;
  all_reduce(job);
  for (const auto& tensor : job.tensors) fuzz::check(tensor == job.tensors[0], "the same bits on all ranks");
  if (broadcast) {
    fuzz::check(job.tensors[0] == inputs[job.operation.root], "the root's bytes");
  } else {
    check_result(job, inputs);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  if (input.ConsumeIntegralInRange<int>(0, 3) == 0) {
    const std::uint64_t most = input.ConsumeBool() ? 4096 : std::uint64_t{1} << 40;
    const auto elements = input.ConsumeIntegralInRange<std::uint64_t>(0, most);
    const auto operation = input.ConsumeIntegral<std::uint64_t>();
    const auto packet_elements = input.PickValueInArray(packet_lengths);
    const auto lanes = input.ConsumeIntegralInRange<std::uint32_t>(1, 256);
    check_shares(elements, operation, packet_elements, lanes, 1U << input.ConsumeIntegralInRange<std::uint32_t>(0, 10));
  } else {
    check_job(input);
  }
  return 0;
}
