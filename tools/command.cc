#include "tools/command.h"

#include <fmt/format.h>

#include "tools/units.h"

namespace weightfs::tools {
namespace {

// An option parsed by `parse` into `*to`.
template <typename T, typename Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, T* to, const std::string& help, const char* type,
                        Parse parse) {
  auto take = [name, to, parse](const std::string& text) {
    auto value = parse(text);
    if (!value) throw CLI::ValidationError(name, value.status().message());
    *to = std::move(value).value();
  };
  auto* option = app.add_option_function<std::string>(name, take, help);
  return option->type_name(type);
}

constexpr const char* kNeedsVersion = "name a version too: MODEL/VERSION or MODEL/latest";

Result<Scope> parse_scope(const std::string& text) {
  Scope scope;
  auto slash = text.find('/');
  scope.model = WFS_TRY(ModelName::parse(text.substr(0, slash)));
  if (slash == std::string::npos) return scope;
  scope.version = text.substr(slash + 1);
  if (scope.version != "latest") WFS_TRY(VersionName::parse(scope.version));
  return scope;
}

}  // namespace

CLI::Option* add_size(CLI::App& app, const std::string& name, std::uint64_t* to, const std::string& help) {
  return add_parsed(app, name, to, help, "SIZE", parse_size);
}

CLI::Option* add_duration(CLI::App& app, const std::string& name, Duration* to, const std::string& help) {
  return add_parsed(app, name, to, help, "TIME", parse_duration);
}

CLI::Option* add_model(CLI::App& app, const std::string& name, std::optional<ModelName>* to, const std::string& help) {
  return add_parsed(app, name, to, help, "", ModelName::parse);
}

CLI::Option* add_version(CLI::App& app, const std::string& name, std::optional<VersionRef>* to,
                         const std::string& help) {
  return add_parsed(app, name, to, help, name.starts_with("-") ? "MODEL/VERSION" : "", VersionRef::parse);
}

CLI::Option* add_scope(CLI::App& app, const std::string& name, Scope* to, const std::string& help) {
  return add_parsed(app, name, to, help, "", parse_scope);
}

Scope parse_version_scope(const std::string& option, const std::string& text) {
  auto scope = parse_scope(text);
  if (!scope) throw CLI::ValidationError(option, scope.status().message());
  if (scope->version.empty()) throw CLI::ValidationError(option, kNeedsVersion);
  return std::move(scope).value();
}

void add_version_scope(CLI::App& app, const std::string& name, Scope* to, const std::string& help) {
  add_scope(app, name, to, help)->required()->check([](const std::string& text) {
    return text.find('/') == std::string::npos ? kNeedsVersion : "";
  });
}

CLI::Option* add_json(CLI::App& app, bool* to) {
  return app.add_flag("--json", *to, "Print one JSON object on standard output instead of text");
}

void set_examples(CLI::App& app, std::initializer_list<std::pair<const char*, const char*>> examples) {
  std::string text = "Examples:\n";
  for (const auto& [line, meaning] : examples) text += fmt::format("  {}\n      {}\n", line, meaning);
  app.footer(text);
}

}  // namespace weightfs::tools
