// Certificates for tests, by the openssl command.
#pragma once

#include <string>

#include "store/base/status.h"

namespace weightfs {

// In `dir`: ca.pem, and cert.pem with key.pem for 127.0.0.1, good for a day.
Status make_certificates(const std::string& dir);

}  // namespace weightfs
