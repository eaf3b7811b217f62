// Where to cut the keys into classes, from a sample.
#include <algorithm>
#include <bit>
#include <cmath>

#include "store/codec/sparse.h"

namespace weightfs::codec {
namespace {

constexpr int kSteps = 16;                  // of the table, in each doubling of mean + 1/kRange
constexpr int kLow = -10;                   // log2 of the smallest mean told apart
constexpr int kHigh = 40;                   // and of the largest
constexpr double kClassOverhead = 8 * 6.0;  // bits: mode, lengths, sentinel, half a byte of filling in each stream
constexpr double kHeadOverhead = 8.0;
// What a further class has to save. It costs time for each element, changed or not, so the more changed the smaller a
// share of the size is enough: in bits, this times the root of (size in one class, in bits, times elements).
constexpr double kWorthAClass = 0.0032;
constexpr int kMaxCells = 24;
constexpr int kUniform = 8;  // Rice parameters tried for values with one parameter

// Bits of a Rice code with parameter k, for geometric values of this mean.
double rice_cost_at(double mean, int k) {
  if (mean <= 0) return 1.0 + k;
  double stay = std::exp(-std::log1p(1 / mean) * std::exp2(k));  // P(value >= 2^k)
  return k + 1 + stay / (1 - stay);
}

struct RiceTable {
  std::array<float, (kHigh - kLow) * kSteps + 1> bits;
  RiceTable() {
    for (std::size_t i = 0; i < bits.size(); ++i) {
      double mean = std::exp2(kLow + static_cast<double>(i) / kSteps), best = 1e30;
      for (int k = 0; k <= kHigh; ++k) best = std::min(best, rice_cost_at(mean, k));
      bits[i] = static_cast<float>(best);
    }
  }
};

// A run of neighbouring keys that are not told apart any further.
struct Cell {
  int first_key = 0;
  double count = 0, changed = 0, beyond_one = 0, distance = 0;
  double keyed_bits = 0;                        // of the distances, each key with the best parameter
  std::array<double, kUniform> uniform_bits{};  // and with this parameter

  void add(const Cell& other) {
    count += other.count;
    changed += other.changed;
    beyond_one += other.beyond_one;
    distance += other.distance;
    keyed_bits += other.keyed_bits;
    for (int k = 0; k < kUniform; ++k) uniform_bits[k] += other.uniform_bits[k];
  }
  // kUniform if it is not much longer; a decoder reads it faster.
  double value_bits() const {
    return std::min(*std::min_element(uniform_bits.begin(), uniform_bits.end()), keyed_bits / 0.9);
  }
};

struct Cells {
  std::array<Cell, kMaxCells> at;
  int size = 0;
};

// Joins neighbours until few enough are left that each has a share worth a look.
Cells make_cells(const KeyStatistics& statistics) {
  auto smallest = static_cast<double>(statistics.sampled) / 400;
  Cells cells;
  for (int key = 0; key < 256; ++key) {
    if (statistics.count[key] == 0) continue;
    bool join = cells.size > 0 && (cells.at[cells.size - 1].count < smallest || cells.size == kMaxCells);
    if (!join) cells.at[cells.size++] = {.first_key = key};
    auto& cell = cells.at[cells.size - 1];
    Cell one{.count = static_cast<double>(statistics.count[key]),
             .changed = static_cast<double>(statistics.changed[key]),
             .beyond_one = static_cast<double>(statistics.beyond_one[key]),
             .distance = statistics.distance[key]};
    if (one.changed > 0) {
      double mean = one.distance / one.changed;
      one.keyed_bits = one.changed * rice_cost(mean);
      for (int k = 0; k < kUniform; ++k) one.uniform_bits[k] = one.changed * rice_cost_at(mean, k);
    }
    cell.add(one);
  }
  return cells;
}

// Bits of the cells [from, to) as one class, in the sample, and whether its events should carry values.
double class_cost(const Cell& sum, bool& valued) {
  valued = false;
  // What a sample did not see change may still do so, rarely.
  double changed = sum.changed + 0.05;
  double bits = changed * (1 + rice_cost(std::max(0.0, sum.count / changed - 1)));
  if (sum.beyond_one == 0) return bits;
  double exceptions = sum.beyond_one * (rice_cost(std::max(0.0, sum.changed / sum.beyond_one - 1)) +
                                        rice_cost(std::max(0.0, (sum.distance - sum.beyond_one) / sum.beyond_one)));
  double values = sum.value_bits();
  // Exceptions cost a decoder more than their bits.
  valued = values < exceptions * 1.2;
  return bits + (valued ? values : exceptions);
}

}  // namespace

double rice_cost(double mean) {
  static const RiceTable table;
  if (mean <= std::exp2(kLow)) return 1.0;
  // log2 by the float's own exponent; the mantissa's part is off by 0.01 at most.
  auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(mean));
  auto fraction = static_cast<float>(bits & 0x7FFFFF) * 0x1p-23F;
  auto log2 = static_cast<float>(static_cast<int>(bits >> 23) - 127) + fraction + fraction * (1 - fraction) * 0.3437F;
  auto index = static_cast<int>((log2 - kLow) * kSteps + 0.5F);
  return table.bits[static_cast<std::size_t>(std::clamp(index, 0, (kHigh - kLow) * kSteps))];
}

SparsePlan plan_classes(const KeyStatistics& statistics, double& bits) {
  SparsePlan plan;
  bits = kHeadOverhead;
  auto cells = make_cells(statistics);
  if (cells.size == 0) return plan;
  double scale = static_cast<double>(statistics.elements) / static_cast<double>(statistics.sampled);

  // best[k][j]: fewest bits for the first j cells in k classes; from[k][j]: where the last of them begins.
  std::array<std::array<double, kMaxCells + 1>, kMaxClasses + 1> best;
  std::array<std::array<int, kMaxCells + 1>, kMaxClasses + 1> from{};
  std::array<std::array<bool, kMaxCells + 1>, kMaxClasses + 1> valued{};
  for (auto& row : best) row.fill(1e30);
  best[0][0] = kHeadOverhead;
  for (int i = 0; i < cells.size; ++i) {
    Cell sum;
    for (int j = i + 1; j <= cells.size; ++j) {
      const auto& cell = cells.at[j - 1];
      sum.add(cell);
      bool with_values = false;
      double cost = class_cost(sum, with_values) * scale + kClassOverhead;
      for (int k = 1; k <= kMaxClasses && k <= j; ++k) {
        if (best[k - 1][i] + cost >= best[k][j]) continue;
        best[k][j] = best[k - 1][i] + cost;
        from[k][j] = i;
        valued[k][j] = with_values;
      }
    }
  }
  int classes = 1;
  // A further class also costs decoding time.
  double worth = kWorthAClass * std::sqrt(best[1][cells.size] * static_cast<double>(statistics.elements));
  for (int k = 2; k <= kMaxClasses; ++k) {
    if (best[k][cells.size] + (k - classes) * worth < best[classes][cells.size]) classes = k;
  }
  plan.classes = classes;
  bits = best[classes][cells.size];
  for (int k = classes, j = cells.size; k > 0; --k) {
    plan.valued[k - 1] = valued[k][j];
    j = from[k][j];
    plan.first_key[k - 1] = static_cast<std::uint8_t>(k == 1 ? 0 : cells.at[j].first_key);
  }
  return plan;
}

}  // namespace weightfs::codec
