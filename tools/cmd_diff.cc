// weightfs diff BUCKET A B
#include "store/diff.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/output.h"
#include "tools/progress.h"
#include "tools/session.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

struct Options {
  BucketArgs bucket;
  Scope a, b;
  bool json = false;
};

std::string type_of(const std::string& dtype, const std::vector<std::uint64_t>& shape) {
  return fmt::format("{}[{}]", printable(dtype), fmt::join(shape, ","));
}

void print_as_json(const VersionDiff& diff) {
  Json facts{{"changed_elements", diff.changed_elements},
             {"total_elements", diff.total_elements},
             {"tensors", Json::array()},
             {"files", Json::array()}};
  for (const TensorDiff& tensor : diff.tensors) {
    Json entry{{"name", tensor.name},
               {"kind", to_string(tensor.kind)},
               {"dtype", tensor.dtype},
               {"shape", tensor.shape},
               {"elements", tensor.elements},
               {"changed_elements", tensor.changed_elements},
               {"largest_ulp_step", tensor.largest_ulp_step}};
    if (tensor.kind == TensorDiff::Kind::kReshaped) {
      entry["old_dtype"] = tensor.old_dtype;
      entry["old_shape"] = tensor.old_shape;
    }
    facts["tensors"].push_back(std::move(entry));
  }
  for (const FileDiff& file : diff.files) {
    facts["files"].push_back({{"path", file.path}, {"kind", to_string(file.kind)}});
  }
  print_json(facts);
}

void print_as_text(const VersionDiff& diff) {
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "TYPE", ">CHANGED", ">SHARE", ">LARGEST STEP", ""}};
  std::size_t same = 0;
  for (const TensorDiff& tensor : diff.tensors) {
    std::string note(to_string(tensor.kind));
    switch (tensor.kind) {
      case TensorDiff::Kind::kSame:
        same++;
        continue;
      case TensorDiff::Kind::kReshaped:
        note = "was " + type_of(tensor.old_dtype, tensor.old_shape);
        break;
      case TensorDiff::Kind::kChanged:
        rows.push_back({printable(tensor.name), type_of(tensor.dtype, tensor.shape),
                        format_count(tensor.changed_elements),
                        format_percent(static_cast<double>(tensor.changed_elements) /
                                       static_cast<double>(std::max<std::uint64_t>(tensor.elements, 1))),
                        format_count(tensor.largest_ulp_step) + " ULP", ""});
        continue;
      default:
        break;
    }
    rows.push_back({printable(tensor.name), type_of(tensor.dtype, tensor.shape), "", "", "", note});
  }
  if (rows.size() > 1) print_table(rows);
  for (const FileDiff& file : diff.files) fmt::print("file {} {}\n", printable(file.path), to_string(file.kind));
  fmt::print("{} of {} elements changed ({}); {} of {} tensors are the same\n", format_count(diff.changed_elements),
             format_count(diff.total_elements),
             format_percent(static_cast<double>(diff.changed_elements) /
                            static_cast<double>(std::max<std::uint64_t>(diff.total_elements, 1))),
             same, diff.tensors.size());
}

Result<int> run(const Options& options) {
  Session session = WFS_TRY(Session::open_beside_mount(options.bucket));
  VersionPtr a = WFS_TRY(session->find_version(*options.a.model, options.a.version, short_call()));
  VersionPtr b = WFS_TRY(session->find_version(*options.b.model, options.b.version, short_call()));
  ProgressBar bar("diff");
  auto compared = diff(*session, a, b, bar.callback(), long_call());
  bar.finish();
  VersionDiff result = WFS_TRY(std::move(compared));
  if (options.json) {
    print_as_json(result);
  } else {
    print_as_text(result);
  }
  return kDone;
}

}  // namespace

Run add_diff(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_bucket_args(app, &options->bucket);
  add_version_scope(app, "A", &options->a, "The older version, MODEL/VERSION");
  add_version_scope(app, "B", &options->b, "The newer version, of any model in the bucket");
  add_json(app, &options->json);
  set_examples(app, {{"weightfs diff s3://weights/prod qwen3/step-000100 qwen3/latest",
                      "each tensor that changed: how many elements, and by how many units in the last place at most"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
