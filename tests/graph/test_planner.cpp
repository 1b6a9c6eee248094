// SPDX-License-Identifier: MIT
// The planner's promises, checked by a second, independent walk through the plan: on random nets, on the real ones,
// with every way a backend may divide an op.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backend/reference.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/graph/planner.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/models/resnet_cifar.hpp>
#include <tutti/train/executor.hpp>

#include "graph/random_graph.hpp"

using namespace tutti;

namespace {

// A backend's answer to how an op is divided: what its semantics allow, at random or as the CPU backends do.
Partition divide(const Op& o, const NodeDesc& d, Rng* random) {
  const bool custom = std::holds_alternative<op::Custom>(o) || std::holds_alternative<op::CustomBackward>(o);
  const bool two_pass = std::holds_alternative<op::BatchNorm>(o) || std::holds_alternative<op::BatchNormBackward>(o);
  bool sums = std::holds_alternative<op::SoftmaxCrossEntropy>(o) || std::holds_alternative<op::BiasBackward>(o) ||
              std::holds_alternative<op::LinearBackwardWeights>(o) ||
              std::holds_alternative<op::Conv2dBackwardWeights>(o);
  if (custom || (random != nullptr && random->below(4) == 0))
    return {Division::whole, random != nullptr ? 1 + static_cast<int>(random->below(3)) : 1, 0};
  if (two_pass) return {Division::two_pass, 1, static_cast<std::size_t>(d.in[0].shape[1]) * 16};
  if (sums) return {Division::reduce, 1, random != nullptr ? 1 + random->below(5000) : 256};
  return {Division::rows};
}

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// A stretch of bytes of the activation arena or of scratch, and when it holds something that is still needed.
struct Block {
  std::string name;
  std::size_t begin = 0, end = 0;
  int first = std::numeric_limits<int>::max(), last = -1;

  void touch(int t) {
    first = std::min(first, t);
    last = std::max(last, t);
  }
};

int overlaps(const std::vector<Block>& blocks) {
  int bad = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const Block &a = blocks[i], &b = blocks[j];
      const bool together = a.first <= b.last && b.first <= a.last, over = a.begin < b.end && b.begin < a.end;
      if (together && over && ++bad == 1)
        MESSAGE(a.name << " [" << a.begin << ", " << a.end << ") overlaps " << b.name << " [" << b.begin << ", "
                       << b.end << ")");
    }
  return bad;
}

class PlanCheck {
 public:
  PlanCheck(const Graph& g, const Plan& p, const ArenaLayout& parameters, bool keep_all)
      : g_(g), p_(p), parameters_(parameters), keep_all_(keep_all), made_(g.values.size(), -1) {}

  void run() {
    order();
    memory();
    ready();
  }

 private:
  enum { never = -1 };

  [[nodiscard]] bool given(ValueId v) const {
    const Storage s = g_[v].storage;
    return s == Storage::image || s == Storage::labels || s == Storage::parameter || s == Storage::state;
  }

  // Every phase of every node once and in order; each reads only what exists by then: from earlier segments anything,
  // from its own segment only the rows of the same chunk.
  void order() {
    const std::size_t nodes = g_.nodes.size();
    std::vector<int> whole(nodes), reduce(nodes), apply(nodes), finish(nodes);
    int too_early = 0;
    for (std::size_t s = 0; s < p_.segments.size(); ++s) {
      const Segment& seg = p_.segments[s];
      CHECK(!seg.steps.empty());
      if (seg.whole) {
        REQUIRE(seg.steps.size() == 1);
        CHECK(seg.finishes.empty());
        CHECK(seg.steps[0].phase == Phase::whole);
      } else {
        CHECK(seg.chunk_rows >= 1);
        CHECK(seg.chunk_rows <= (p_.rows + p_.lanes - 1) / p_.lanes);
      }
      std::vector<char> chunk(g_.values.size(), 0);  // this chunk's rows exist
      std::vector<ValueId> after;                    // exist once the segment is over
      const auto read = [&](ValueId v) {
        if (given(v)) return;
        const bool earlier = made_[at(v)] != never && made_[at(v)] < static_cast<int>(s);
        if (!earlier && (seg.whole || !g_[v].per_row || chunk[at(v)] == 0)) ++too_early;
      };
      const auto write = [&](ValueId v) {
        if (g_[v].per_row && !seg.whole) chunk[at(v)] = 1;
        after.push_back(v);
      };
      for (const Step& step : seg.steps) {
        const Node& n = g_.nodes[at(step.node)];
        const Division d = p_.partitions[at(step.node)].division;
        CHECK((step.phase == Phase::whole) == (d == Division::whole));
        for (ValueId v : n.inputs) read(v);
        if (step.phase == Phase::whole) {
          ++whole[at(step.node)];
          for (ValueId v : n.outputs) write(v);
        } else if (step.phase == Phase::reduce) {
          CHECK((d == Division::reduce || d == Division::two_pass));
          ++reduce[at(step.node)];
          CHECK(std::find(seg.finishes.begin(), seg.finishes.end(), step.node) != seg.finishes.end());
          for (std::size_t k = d == Division::two_pass ? 1 : 0; k < n.outputs.size(); ++k) write(n.outputs[k]);
        } else {
          CHECK((d == Division::rows || d == Division::two_pass));
          ++apply[at(step.node)];
          if (d == Division::two_pass) {
            // Reads what its first pass made.
            for (std::size_t k = 1; k < n.outputs.size(); ++k) read(n.outputs[k]);
            write(n.outputs[0]);
          } else {
            for (ValueId v : n.outputs) write(v);
          }
        }
      }
      for (NodeId f : seg.finishes) {
        ++finish[at(f)];
        CHECK(reduce[at(f)] == 1);
      }
      for (ValueId v : after) {
        CHECK(made_[at(v)] == never);
        made_[at(v)] = static_cast<int>(s);
      }
    }
    CHECK(too_early == 0);
    int wrong = 0;
    for (std::size_t i = 0; i < nodes; ++i) {
      const Division d = p_.partitions[i].division;
      const bool sums = d == Division::reduce || d == Division::two_pass;
      wrong += whole[i] != (d == Division::whole) || reduce[i] != sums || finish[i] != sums ||
               apply[i] != (d == Division::rows || d == Division::two_pass);
    }
    CHECK(wrong == 0);
    for (ValueId v = 0; v < static_cast<ValueId>(g_.values.size()); ++v)
      if (g_[v].producer >= 0 &&
          std::find(g_.nodes[at(g_[v].producer)].outputs.begin(), g_.nodes[at(g_[v].producer)].outputs.end(), v) !=
              g_.nodes[at(g_[v].producer)].outputs.end())
        CHECK(made_[at(v)] != never);
  }

  // No two values that are needed at the same time share bytes: in the arena by segments, in scratch by steps.
  void memory() {
    std::vector<Block> values(g_.values.size()), partials, scratch;
    for (std::size_t s = 0; s < p_.segments.size(); ++s) {
      const Segment& seg = p_.segments[s];
      std::map<ValueId, Block> mine;
      for (std::size_t k = 0; k < seg.steps.size(); ++k) {
        const Step step = seg.steps[k];
        const Node& n = g_.nodes[at(step.node)];
        const bool first_pass =
            step.phase == Phase::reduce && p_.partitions[at(step.node)].division == Division::two_pass;
        std::vector<ValueId> touched = n.inputs;
        touched.insert(touched.end(), n.outputs.begin() + (first_pass ? 1 : 0), n.outputs.end());
        for (ValueId v : touched) {
          const ValuePlace& place = p_.values[at(v)];
          if (place.where == Where::activation) {
            values[at(v)].touch(static_cast<int>(s));
          } else if (place.where == Where::scratch) {
            CHECK(!seg.whole);
            CHECK(g_[v].per_row);
            // Scratch does not outlive its chunk: one segment reads and writes it, and writes it first.
            CHECK(made_[at(v)] == static_cast<int>(s));
            Block& b = mine[v];
            b.name = g_[v].name;
            b.begin = place.offset;
            b.end = b.begin + static_cast<std::size_t>(seg.chunk_rows) * place.desc.row_bytes();
            b.touch(static_cast<int>(k));
          } else {
            CHECK(place.where != Where::nowhere);
          }
        }
        if (step.phase == Phase::reduce) {
          const std::size_t stride = (p_.partitions[at(step.node)].partial_bytes + 63) / 64 * 64;
          Block b{n.name + " partial", p_.partial_offset[at(step.node)], 0};
          b.end = b.begin + stride * static_cast<std::size_t>(p_.lanes);
          b.touch(static_cast<int>(s));
          CHECK(b.begin % 64 == 0);
          CHECK(b.end <= p_.activation_bytes);
          partials.push_back(b);
        }
      }
      std::vector<Block> here;
      for (auto& [v, b] : mine) {
        CHECK(b.begin % 64 == 0);
        CHECK(b.end <= p_.scratch_bytes);
        here.push_back(b);
      }
      CHECK(overlaps(here) == 0);
    }
    std::vector<Block> blocks = partials;
    for (std::size_t v = 0; v < values.size(); ++v) {
      if (p_.values[v].where != Where::activation) continue;
      Block b = values[v];
      const auto id = static_cast<ValueId>(v);
      b.name = g_[id].name;
      b.begin = p_.values[v].offset;
      b.end = b.begin + p_.values[v].desc.bytes();
      if (keep_all_ || id == g_.logits || id == g_.metrics) b.last = static_cast<int>(p_.segments.size());
      CHECK(b.begin % 64 == 0);
      CHECK(b.end <= p_.activation_bytes);
      blocks.push_back(b);
    }
    CHECK(overlaps(blocks) == 0);
    if (keep_all_)
      for (std::size_t v = 0; v < g_.values.size(); ++v) CHECK(p_.values[v].where != Where::scratch);
    CHECK(p_.values[at(g_.logits)].where == Where::activation);
    CHECK(p_.values[at(g_.metrics)].where == Where::activation);
  }

  // Slices lie in the order in which their gradients become final, and `ready` counts those that are.
  void ready() {
    if (!p_.training) return;
    std::map<std::string, int> final_in;  // the last segment of the node that makes the gradient
    for (std::size_t s = 0; s < p_.segments.size(); ++s)
      for (const Step& step : p_.segments[s].steps)
        for (ValueId v : g_.nodes[at(step.node)].outputs)
          if (g_[v].storage == Storage::gradient) final_in[g_[v].name] = static_cast<int>(s);
    std::size_t trained = 0;
    int before = -1;
    for (const Slice& s : parameters_.slices) {
      if (!s.trainable) continue;
      CHECK(&s == &parameters_.slices[trained]);  // those that learn come first
      ++trained;
      REQUIRE(final_in.count(s.name) == 1);
      CHECK(final_in[s.name] >= before);
      before = final_in[s.name];
    }
    CHECK(trained == final_in.size());
    std::size_t most = 0;
    for (std::size_t s = 0; s < p_.segments.size(); ++s) {
      std::size_t expected = 0;
      while (expected < trained && final_in[parameters_.slices[expected].name] <= static_cast<int>(s)) ++expected;
      CHECK(p_.segments[s].ready == expected);
      most = std::max(most, p_.segments[s].ready);
    }
    CHECK(most == trained);
  }

  const Graph& g_;
  const Plan& p_;
  const ArenaLayout& parameters_;
  bool keep_all_;
  std::vector<int> made_;  // the segment after which a value is whole
};

struct Made {
  Plan plan;
  ArenaLayout parameters;
};

// Plans a forward graph for training or evaluation and checks everything.
Made check_plan(const Graph& forward, PlanOptions o, Rng* random) {
  const Graph fused = fuse(forward), train = differentiate(fused);
  const Graph g = o.training ? train : inference(fused);
  Made m;
  m.parameters = parameter_layout(train, o.master);
  const auto op_of = [&](NodeId node) -> const Op& { return g.nodes[at(node)].op; };
  const PlanQueries q{[&](NodeId node, const NodeDesc& d) { return divide(op_of(node), d, random); },
                      [&](NodeId node) {
                        const Value& w = g[g.nodes[at(node)].inputs[1]];
                        return o.compute == o.master ? std::size_t{0} : static_cast<std::size_t>(w.shape.numel()) * 2;
                      }};
  m.plan = make_plan(g, o, q, m.parameters, state_layout(train, o.master));
  PlanCheck(g, m.plan, m.parameters, o.keep_all).run();
  std::size_t packed = 0;
  for (const Pack& k : m.plan.packs) {
    CHECK(k.offset >= packed);
    packed = k.offset + k.bytes;
    CHECK(m.plan.pack_of[at(k.node)] >= 0);
  }
  CHECK(packed <= m.plan.packed_bytes);
  return m;
}

Graph cifar(int depth, bool preactivation) {
  Builder b(3, preactivation ? 28 : 32, preactivation ? 28 : 32);
  models::resnet_cifar(b, b.normalize({0, 0, 0}, {1, 1, 1}), {.depth = depth, .preactivation = preactivation});
  return std::move(b).take();
}

Graph imagenet(int depth) {
  Builder b(3, 224, 224);
  models::resnet(b, b.normalize({0, 0, 0}, {1, 1, 1}), {.depth = depth});
  return std::move(b).take();
}

}  // namespace

TEST_CASE("random nets, random divisions, batch sizes, lanes and chunks") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Rng r(seed, Purpose::user, 1);
    const Graph g = testing::random_graph(seed, 1 + static_cast<int>(r.below(25)));
    PlanOptions o;
    o.rows = 1 + r.below(40);
    o.lanes = 1 + static_cast<int>(r.below(9));
    o.chunk_bytes = 256U << r.below(11);
    o.compute = r.below(2) == 0 ? DType::f32 : DType::bf16;
    o.training = r.below(4) != 0;
    o.keep_all = r.below(5) == 0;
    check_plan(g, o, r.below(2) == 0 ? &r : nullptr);
  }
}

TEST_CASE("the models") {
  for (int depth : {8, 20, 56})
    for (bool preactivation : {false, true})
      for (bool training : {true, false}) {
        CAPTURE(depth);
        PlanOptions o;
        o.rows = 128;
        o.training = training;
        o.compute = preactivation ? DType::bf16 : DType::f32;
        check_plan(cifar(depth, preactivation), o, nullptr);
      }
  for (int depth : {18, 50}) {
    CAPTURE(depth);
    PlanOptions o;
    o.rows = 32;
    check_plan(imagenet(depth), o, nullptr);
  }
}

TEST_CASE("memory: what lives in scratch is not in the arena, and bf16 halves it") {
  PlanOptions o;
  o.rows = 128;
  const Graph g = cifar(20, false);
  const Plan f32 = check_plan(g, o, nullptr).plan;
  o.compute = DType::bf16;
  const Plan bf16 = check_plan(g, o, nullptr).plan;
  CHECK(bf16.activation_bytes < f32.activation_bytes * 6 / 10);
  o.training = false;
  const Plan eval = check_plan(g, o, nullptr).plan;
  CHECK(eval.activation_bytes < bf16.activation_bytes / 8);  // nothing is kept for a backward pass
  o.training = true;
  o.keep_all = true;
  CHECK(check_plan(g, o, nullptr).plan.activation_bytes > bf16.activation_bytes);
}

TEST_CASE("plans refuse an empty batch; few rows make few lanes") {
  const Graph g = cifar(8, false);
  PlanOptions o;
  o.rows = 0;
  CHECK_THROWS_AS(check_plan(g, o, nullptr), UsageError);
  o.rows = 3;
  const Plan p = check_plan(g, o, nullptr).plan;
  CHECK(p.lanes == 3);
  CHECK(p.lane_begin(0) == 0);
  CHECK(p.lane_begin(3) == 3);
}

TEST_CASE("custom op: forward, gradient, and a missing kernel is an error when the plan is made") {
  const auto net = [](const std::shared_ptr<const CustomOp>& def) {
    Builder b(1, 3, 3);
    const ValueId x = nn::conv(b, "c", b.normalize({0}, {1 / 255.0F}), {.out = 2});
    const ValueId y = def != nullptr ? b.custom("sq", def, {x})[0] : x;
    b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("p", y), 2, {}));
    return std::pair{std::move(b).take(), std::pair{x, y}};
  };
  const auto fill = [](Executor& e) {
    Rng r(1, Purpose::user);
    auto* w = static_cast<double*>(e.parameter_data());
    for (std::size_t i = 0; i < e.parameters().count; ++i) w[i] = r.normal() / 2;
    e.parameters_changed();
  };
  const std::vector<std::uint8_t> images{3, 100, 200, 30, 40, 250, 1, 7, 90};
  const std::vector<std::int32_t> labels{1};
  Reference reference;
  const auto [g, values] = net(testing::square_op());
  Executor e(reference, g, {DType::f64, true});
  fill(e);
  const Metrics m = e.train({images.data(), labels.data(), 1}, {});
  const auto x = e.value(values.first).view<double>(), y = e.value(values.second).view<double>();
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == x[i] * x[i]);
  // The gradient by finite differences.
  const std::vector<double> gradient(static_cast<double*>(e.gradient_data()),
                                     static_cast<double*>(e.gradient_data()) + e.parameters().count);
  const Slice& w = *e.parameters().find("c.weight");
  for (std::size_t i = w.offset; i < w.offset + w.count; ++i) {
    auto* p = static_cast<double*>(e.parameter_data());
    const double keep = p[i], h = 1e-5;
    p[i] = keep + h;
    e.parameters_changed();
    const double up = e.train({images.data(), labels.data(), 1}, {}).loss;
    p[i] = keep - h;
    e.parameters_changed();
    const double down = e.train({images.data(), labels.data(), 1}, {}).loss;
    p[i] = keep;
    CHECK(gradient[i] == doctest::Approx((up - down) / (2 * h)).epsilon(1e-5));
  }
  CHECK(m.rows == 1);

  // Kernels are looked for by the backend's own name first, then "host".
  auto named = std::make_shared<CustomOp>(*testing::square_op());
  named->forward["reference"] = [](auto, std::span<const TensorRef> out) {
    for (double& v : out[0].view<double>()) v = 7;
  };
  const auto [h, named_values] = net(named);
  Executor own(reference, h, {DType::f64, true});
  fill(own);
  own.train({images.data(), labels.data(), 1}, {});
  CHECK(own.value(named_values.second).view<double>()[3] == 7);

  for (bool backward : {false, true}) {
    auto missing = std::make_shared<CustomOp>(*testing::square_op());
    auto& kernels = backward ? missing->backward : missing->forward;
    kernels["cuda"] = kernels["host"];
    kernels.erase("host");
    const auto made = net(missing);
    Executor broken(reference, made.first, {DType::f64});
    CHECK_THROWS_WITH_AS(broken.prepare(4, true), doctest::Contains("kernel of the custom op 'square' for backend"),
                         UsageError);
    if (backward) CHECK_NOTHROW(broken.prepare(4, false));
  }
}

TEST_CASE("executor: a value that the plan does not keep is an error, not garbage") {
  Reference reference;
  const Graph g = cifar(8, false);
  Executor e(reference, g);
  CHECK_THROWS_AS((void)e.value(g.logits), UsageError);  // nothing ran
}
