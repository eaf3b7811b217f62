#include "store/bucket/credentials.h"

#include <cstdlib>
#include <map>

#include "store/base/posix.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kMaxFile = 1 << 20;

using Section = std::map<std::string, std::string, std::less<>>;

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

// The settings of one section of an AWS file. A file that is not there has none.
Result<Section> read_section(const std::string& path, std::string_view wanted) {
  Section section;
  if (path.empty()) return section;
  auto file = posix::read_file(path, kMaxFile);
  if (file.code() == Code::kNotFound) return section;
  auto bytes = WFS_TRY(std::move(file));
  bool inside = false;
  int number = 0;
  for (auto text = as_text(bytes); !text.empty();) {
    auto end = text.find('\n');
    auto raw = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    number++;
    auto line = trim(raw);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      if (line.back() != ']') return Status(Code::kInvalid, path + " line " + std::to_string(number) + ": no ']'");
      inside = trim(line.substr(1, line.size() - 2)) == wanted;
      continue;
    }
    bool nested = raw.front() == ' ' || raw.front() == '\t';  // "s3 =" and lines below it
    if (!inside || nested) continue;
    auto equals = line.find('=');
    if (equals == line.npos) return Status(Code::kInvalid, path + " line " + std::to_string(number) + ": no '='");
    section.insert_or_assign(std::string(trim(line.substr(0, equals))), std::string(trim(line.substr(equals + 1))));
  }
  return section;
}

std::string value_of(const Section& section, std::string_view name) {
  auto found = section.find(name);
  return found == section.end() ? "" : found->second;
}

std::string first_of(std::initializer_list<std::string> values) {
  for (const auto& value : values) {
    if (!value.empty()) return value;
  }
  return "";
}

S3Keys keys_of(const Section& section) {
  return {value_of(section, "aws_access_key_id"), value_of(section, "aws_secret_access_key"),
          value_of(section, "aws_session_token")};
}
bool complete(const S3Keys& keys) { return !keys.access_key.empty() && !keys.secret_key.empty(); }

// A header's value must not hold a line end.
bool clean(const S3Keys& keys) {
  auto fine = [](const std::string& text) {
    for (char c : text) {
      if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f) return false;
    }
    return true;
  };
  return fine(keys.access_key) && fine(keys.secret_key) && fine(keys.session_token);
}

}  // namespace

std::string process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<AwsSettings> load_aws_settings(const Environment& environment) {
  auto home = environment("HOME");
  auto profile = first_of({environment("AWS_PROFILE"), "default"});
  auto file = [&](const char* variable, const char* name) {
    return first_of({environment(variable), home.empty() ? "" : home + "/.aws/" + name});
  };
  auto secrets = WFS_TRY(read_section(file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), profile));
  auto config_section = profile == "default" ? profile : "profile " + profile;
  auto config = WFS_TRY(read_section(file("AWS_CONFIG_FILE", "config"), config_section));

  AwsSettings out;
  out.region = first_of({environment("AWS_REGION"), environment("AWS_DEFAULT_REGION"), value_of(config, "region"),
                         value_of(secrets, "region"), out.region});
  out.endpoint = first_of({environment("AWS_ENDPOINT_URL_S3"), environment("AWS_ENDPOINT_URL"),
                           value_of(config, "endpoint_url"), value_of(secrets, "endpoint_url")});
  out.ca_bundle = first_of({environment("AWS_CA_BUNDLE"), value_of(config, "ca_bundle")});

  S3Keys from_environment{environment("AWS_ACCESS_KEY_ID"), environment("AWS_SECRET_ACCESS_KEY"),
                          environment("AWS_SESSION_TOKEN")};
  for (const auto& keys : {from_environment, keys_of(secrets), keys_of(config)}) {
    if (!complete(keys)) continue;
    if (!clean(keys)) return Status(Code::kInvalid, "the AWS keys hold a space or a control character");
    out.keys = keys;
    return out;
  }
  for (const char* other : {"credential_process", "sso_session", "sso_start_url", "role_arn"}) {
    if (config.contains(other)) {
      return Status(Code::kPermission, "profile '" + profile + "' uses " + other +
                                           ", which is not supported: run `aws configure export-credentials "
                                           "--format env` and set what it prints");
    }
  }
  return Status(Code::kPermission,
                "no S3 keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE with ~/.aws/credentials");
}

}  // namespace weightfs
