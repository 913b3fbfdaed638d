// Data-parallel training: one rank of a job that trains a small network. Each layer's gradients are summed over the ranks
// while those of the layer below are computed. Once for each rank; ADDRESS is an aggregator's (`netsum switch`):
//   sgd ADDRESS RANK RANKS [udp | shm]    by packets or in shared memory only; else in shared memory where that is possible
// The exit status is 1 unless at the end the parameters are rank 0's, to the bit, and the loss has fallen to what it is, but
// for rounding, after this process has trained a second network alone, with all samples.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "netsum/communicator.h"

namespace {

using Values = std::vector<float>;
constexpr std::size_t inputs = 32, classes = 8, samples = 1024, batch = 64, epochs = 8;
constexpr float rate = 0.2F;

// Up to `limit`, and the same on all ranks.
Values random_values(std::size_t length, float limit, std::mt19937& generator) {
  Values values(length);
  for (float& value : values) value = limit * (static_cast<float>(generator() >> 8) * 0x1p-23F - 1);
  return values;
}

struct Layer {
  std::mt19937& generator;
  std::size_t in, out;
  // For each output the weights of the inputs, and a bias.
  Values parameters = random_values(out * (in + 1), 1 / std::sqrt(float(in)), generator), gradients = parameters;

  Values forward(const Values& from) const {
    Values to(out);
    for (std::size_t o = 0; o < out; ++o) {
      const float* row = &parameters[o * (in + 1)];
      for (std::size_t i = 0; i < in; ++i) to[o] += row[i] * std::max(from[i], 0.0F);
      to[o] += row[in];
    }
    return to;
  }
  // Adds a sample's gradients. Returns the errors of its inputs, from those of its outputs.
  Values backward(const Values& from, const Values& errors) {
    Values below(in);
    for (std::size_t o = 0, row = 0; o < out; ++o, row += in + 1) {
      for (std::size_t i = 0; i < in; ++i) {
        gradients[row + i] += errors[o] * std::max(from[i], 0.0F);
        if (from[i] > 0) below[i] += errors[o] * parameters[row + i];
      }
      gradients[row + in] += errors[o];
    }
    return below;
  }
};

struct Sample {
  Values values;
  std::size_t label;
};

struct Network {
  std::mt19937 generator{2};
  std::vector<Layer> layers{{generator, inputs, 128}, {generator, 128, 64}, {generator, 64, classes}};

  // The sample, the outputs of each layer but the last, and the last one's errors. Adds the sample's cross entropy.
  std::vector<Values> look(const Sample& sample, float& loss) const {
    std::vector<Values> values{sample.values};
    for (const Layer& layer : layers) values.push_back(layer.forward(values.back()));
    float sum = 0;
    for (float& output : values.back()) sum += output = std::exp(output);
    for (float& output : values.back()) output /= sum;
    loss -= std::log(values.back()[sample.label]);
    values.back()[sample.label] -= 1;
    return values;
  }
  float mean_loss(const std::vector<Sample>& data) const {
    float sum = 0;
    for (const Sample& sample : data) look(sample, sum);
    return sum / samples;
  }
  // With every `stride`th sample of a batch from `first` on; the job's other ranks take the others.
  void step(const Sample* begin, std::size_t first, std::size_t stride, netsum::Communicator* job) {
    float loss = 0;
    std::vector<std::vector<Values>> share;
    for (std::size_t s = first; s < batch; s += stride) share.push_back(look(begin[s], loss));
    std::vector<netsum::Work> sums;
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      std::ranges::fill(layer->gradients, 0.0F);
      for (std::vector<Values>& values : share) {
        const Values errors = std::move(values.back());
        values.pop_back();
        values.back() = layer->backward(values.back(), errors);
      }
      // It travels while the gradients of the layer below are computed.
      if (job) sums.push_back(job->all_reduce_async(layer->gradients, netsum::ReduceOp::sum));
    }
    for (netsum::Work& sum : sums) sum.wait();
    for (Layer& layer : layers) {
      for (std::size_t i = 0; i < layer.parameters.size(); ++i) layer.parameters[i] -= rate / batch * layer.gradients[i];
    }
  }
};

bool train(netsum::Communicator& job) {
  std::mt19937 generator(1);
  const Layer teacher{generator, inputs, classes};
  std::vector<Sample> data;
  while (data.size() < samples) {
    const Values values = random_values(inputs, 1, generator), outputs = teacher.forward(values);
    data.push_back({values, std::size_t(std::ranges::max_element(outputs) - outputs.begin())});
  }
  Network together, alone;
  const float before = together.mean_loss(data);
  for (std::size_t begin = 0; begin < epochs * samples; begin += batch) {
    together.step(&data[begin % samples], job.rank(), job.world_size(), &job);
    alone.step(&data[begin % samples], 0, 1, nullptr);
  }
  const float after = together.mean_loss(data), expected = alone.mean_loss(data);
  const char* path = job.statistics().shared_memory ? "shared memory" : "packets";
  bool equal = true;
  for (const Layer& layer : together.layers) {
    Values first = layer.parameters;
    job.broadcast(first, 0);
    equal = equal && first == layer.parameters;
  }
  std::printf("rank %u, %s: loss %g, then %g, alone %g; parameters %s rank 0's\n", job.rank(), path, double{before},
              double{after}, double{expected}, equal ? "are" : "ARE NOT");
  return equal && after < before / 2 && std::abs(after - expected) < 1e-3F * expected;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fputs("sgd ADDRESS RANK RANKS [udp | shm]\n", stderr), 2;
  netsum::SwitchMl protocol;
  if (argc > 4) protocol.shared_memory = argv[4][0] == 'u' ? netsum::SharedMemory::off : netsum::SharedMemory::required;
  netsum::Options options{.protocol = protocol, .aggregators = {argv[1]}, .job = "sgd"};
  options.rank = std::uint32_t(std::atoi(argv[2]));
  options.world_size = std::uint32_t(std::atoi(argv[3]));
  try {
    auto job = netsum::Communicator::connect(options);
    return train(job) ? 0 : 1;
  } catch (const netsum::Error& error) {
    std::fprintf(stderr, "sgd: %s\n", error.what());
    return 1;
  }
}
