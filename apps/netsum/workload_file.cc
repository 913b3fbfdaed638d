#include "workload_file.h"

#include "table_reader.h"

namespace netsum::app {
namespace {

constexpr std::uint64_t largest = std::uint64_t{1} << 40;

// A layer's parameters and multiply-adds, from its shape.
sim::Layer layer_of(TableReader& reader) {
  sim::Layer layer;
  layer.name = reader.text("name");
  const auto count = [&](const char* key, std::uint64_t otherwise) { return reader.number(key, otherwise, 1, largest); };
  const std::uint64_t times = count("times", 1);
  if (reader.has("parameters")) {
    layer.parameters = reader.number("parameters", 0, 0, largest);
    layer.work = reader.real("work", 0, 0, 1e18);
  } else {
    const std::uint64_t in = count("in", 1), out = count("out", 1);
    const std::uint64_t kernel = count("kernel", 1), width = count("kernel_width", kernel);
    const std::uint64_t positions = count("positions", 1);  // of the output: height times width, or tokens
    const std::uint64_t weights = in / count("groups", 1) * out * kernel * width;
    layer.parameters = weights + (reader.flag("bias", true) ? out : 0) + (reader.flag("norm", false) ? 2 * out : 0);
    layer.work = static_cast<double>(weights) * static_cast<double>(positions);
  }
  layer.parameters *= times;
  layer.work *= static_cast<double>(times);
  reader.end();
  return layer;
}

}  // namespace

sim::Workload read_workload(const std::string& path, const std::string& model, const std::string& gpu) {
  const TomlTable root = parse_toml(read_whole(path), path);
  TableReader top(root, path, "");
  auto models = top.table("model");
  if (!models) throw top.error("model", "is missing");
  auto reader = models->table(model);
  if (!reader) throw models->error(model, "is not a model of this file");
  sim::Workload workload;
  workload.name = model;
  for (TableReader& layer : reader->tables("layer")) workload.layers.push_back(layer_of(layer));
  if (workload.layers.empty()) throw reader->error("layer", "is missing");
  std::string known;
  for (TableReader& time : reader->tables("time")) {
    const std::string name = time.text("gpu");
    const Duration iteration = time.duration("iteration", Duration::zero());
    static_cast<void>(time.text("source"));
    static_cast<void>(time.number("batch", 1, 1, 1 << 20));
    time.end();
    known += (known.empty() ? "" : ", ") + name;
    if (gpu.empty() ? workload.iteration == Duration::zero() : name == gpu) workload.iteration = iteration;
  }
  if (workload.iteration == Duration::zero() && !gpu.empty())
    throw reader->error("time", "has no GPU '" + gpu + "': it has " + known);
  static_cast<void>(reader->text("source", ""));
  static_cast<void>(reader->text("note", ""));
  reader->end();
  return workload;
}

}  // namespace netsum::app
